#include "plan/program_builder.h"

#include <gmock/gmock.h>

#include "plan/bindings.h"
#include "tests/support/errors.h"

namespace ballast {
namespace {

using testing::ElementsAre;

struct Recording {
  ProgramSet set;
  ProgramBuilder pb{set, "p"};
  const BufferSpec& spec(Buffer b) const { return set.spec(b); }
};

TEST(ProgramBuilder, DescribesABufferAsDeclared) {
  Recording r;
  const Buffer w =
      r.pb.persistent("w", {3, 5}, DType::bf16, Role::weights, Tier::host, /*alignment=*/4096);
  const BufferSpec& s = r.spec(w);
  EXPECT_EQ(s.name, "w");
  EXPECT_EQ(s.strides, Shape({5, 1}));
  EXPECT_EQ(s.bytes, 30u);
  EXPECT_EQ(s.program, kPersistent);
  EXPECT_EQ(s.root, w);
  EXPECT_EQ(s.alignment, 4096u);
  EXPECT_EQ(r.pb.tier(w), Tier::host);
  EXPECT_EQ(r.pb.dtype(w), DType::bf16);
  EXPECT_EQ(r.spec(r.pb.temp("t", {0, 5}, DType::f32)).bytes, 0u);
  EXPECT_EQ(r.spec(r.pb.temp("t", {}, DType::f64)).bytes, 8u);  // a number
}

TEST(ProgramBuilder, TemporariesBelongToTheProgramThatRecordsThem) {
  ProgramSet set;
  ProgramBuilder first(set, "first"), second(set, "second");
  EXPECT_EQ(set.spec(first.temp("x", {1}, DType::f32)).program, 0);
  EXPECT_EQ(set.spec(second.temp("x", {1}, DType::f32)).program, 1);
  EXPECT_EQ(set.program_index("second"), 1);
  EXPECT_FAILS(set.program_index("third"), ErrorCode::internal, "third");
}

TEST(ProgramBuilder, ColumnsOfRowsKeepTheStridesOfTheWhole) {
  Recording r;
  const Buffer x = r.pb.temp("x", {10, 8}, DType::f32);
  const Buffer part = r.pb.columns(r.pb.rows(x, 2, 3), 5, 2);
  const BufferSpec& s = r.spec(part);
  EXPECT_EQ(s.shape, Shape({3, 2}));
  EXPECT_EQ(s.strides, Shape({8, 1}));
  EXPECT_EQ(s.offset, (2u * 8 + 5) * 4);
  EXPECT_EQ(s.bytes, (2u * 8 + 2) * 4);  // first to last byte, the gaps included
  EXPECT_EQ(s.root, x);
  EXPECT_EQ(r.set.name(part), "x");
}

TEST(ProgramBuilder, SplitsTheColumnsOfRowsThatLieApart) {
  Recording r;
  const Buffer x = r.pb.columns(r.pb.temp("x", {10, 8}, DType::f32), 2, 6);
  const BufferSpec s = r.spec(r.pb.split_columns(x, 3));
  EXPECT_EQ(s.shape, Shape({10, 3, 2}));
  EXPECT_EQ(s.strides, Shape({8, 2, 1}));
  EXPECT_EQ(s.offset, 2u * 4);
  EXPECT_FAILS(r.pb.split_columns(x, 4), ErrorCode::internal, "4 parts");
}

TEST(ProgramBuilder, SeesWhatStandsBehindTheRowsOfAPart) {
  Recording r;
  const Buffer x = r.pb.columns(r.pb.rows(r.pb.temp("x", {10, 8}, DType::f32), 1, 9), 0, 5);
  const BufferSpec s = r.spec(r.pb.row_columns(x, 5, 3));
  EXPECT_EQ(s.shape, Shape({9, 3}));
  EXPECT_EQ(s.strides, Shape({8, 1}));
  EXPECT_EQ(s.offset, (8u + 5) * 4);
  EXPECT_EQ(r.spec(r.pb.row_columns(x, 0, 8)).shape, Shape({9, 8}));
  EXPECT_FAILS(r.pb.row_columns(x, 5, 4), ErrorCode::internal, "rows of 8 elements");
}

TEST(ProgramBuilder, ReshapesContiguousBuffersOnly) {
  Recording r;
  const Buffer x = r.pb.temp("x", {4, 6}, DType::bf16);
  const Buffer flat = r.pb.reshape(x, {24});
  EXPECT_EQ(r.spec(flat).strides, Shape({1}));
  EXPECT_EQ(r.spec(flat).root, x);
  EXPECT_EQ(r.spec(r.pb.reshape(r.pb.rows(x, 1, 2), {3, 4})).offset, 12u);
  EXPECT_FAILS(r.pb.reshape(x, {23}), ErrorCode::internal, "cannot be seen as");
  EXPECT_FAILS(r.pb.reshape(r.pb.columns(x, 0, 3), {12}), ErrorCode::internal, "cannot be seen");
}

TEST(ProgramBuilder, ViewsAnyBytesInsideTheRootAndNoneOutside) {
  Recording r;
  const Buffer raw = r.pb.persistent("raw", {100}, DType::u8, Role::weight_slots);
  const Buffer v = r.pb.view(raw, 36, DType::f32, {4, 4});
  EXPECT_EQ(r.spec(v).offset, 36u);
  EXPECT_EQ(r.spec(v).bytes, 64u);  // ends at byte 100 exactly
  EXPECT_EQ(r.spec(v).role, Role::weight_slots);
  EXPECT_EQ(r.spec(r.pb.view(v, 4, DType::u8, {1})).offset, 40u);  // counts from the view
  EXPECT_FAILS(r.pb.view(raw, 37, DType::f32, {4, 4}), ErrorCode::internal, "ends at byte 101");
  EXPECT_FAILS(r.pb.view(v, 64, DType::u8, {1}), ErrorCode::internal, "ends at byte 101");
}

TEST(ProgramBuilder, RefusesSlicesOutsideTheBuffer) {
  Recording r;
  const Buffer x = r.pb.temp("x", {4, 6}, DType::f32);
  EXPECT_FAILS(r.pb.rows(x, 2, 3), ErrorCode::internal, "2+3");
  EXPECT_FAILS(r.pb.columns(x, -1, 3), ErrorCode::internal, "x");
  EXPECT_FAILS(r.pb.rows(x, 0, -1), ErrorCode::internal, "x");
  EXPECT_FAILS(r.pb.shape(Buffer{7}), ErrorCode::internal, "buffer 7");
  EXPECT_EQ(r.spec(r.pb.rows(x, 4, 0)).bytes, 0u);  // nothing, at the end
}

TEST(ProgramBuilder, DropsOperandsThatAreAbsent) {
  Recording r;
  const Buffer x = r.pb.temp("x", {1}, DType::f32), y = r.pb.temp("y", {1}, DType::f32);
  EXPECT_FALSE(r.pb.workspace(0));
  r.pb.emit("op", {.reads = {Buffer(), x, Buffer()}, .writes = {y, r.pb.workspace(0)}},
            [](const Bindings&) {});
  const Instruction& i = r.set.programs[0].instructions.at(0);
  EXPECT_THAT(i.reads, ElementsAre(x));
  EXPECT_THAT(i.writes, ElementsAre(y));
}

TEST(ProgramBuilder, KeepsLaneAndCost) {
  Recording r;
  r.pb.emit("op", {.lane = Lane::disk, .cost = {.work = Work::disk, .flops = 3, .bytes = 4}},
            [](const Bindings&) {});
  const Instruction& i = r.set.programs[0].instructions.at(0);
  EXPECT_EQ(i.lane, Lane::disk);
  EXPECT_EQ(i.cost.work, Work::disk);
  EXPECT_EQ(i.cost.flops, 3);
  EXPECT_EQ(i.cost.bytes, 4);
  EXPECT_TRUE(i.run != nullptr);
}

TEST(ProgramBuilder, RefusesAnExchangeWithoutItsGroupOrOnAnotherLane) {
  Recording r;
  r.set.groups = {{.name = "all", .size = 2}};
  const auto emit = [&](Lane lane, Cost cost) {
    r.pb.emit("gather", {.lane = lane, .cost = cost}, [](const Bindings&) {});
  };
  emit(Lane::network, {.work = Work::network, .group = 0});
  for (const auto& [lane, cost] :
       {std::pair(Lane::network, Cost{.work = Work::network}),
        std::pair(Lane::network, Cost{.work = Work::network, .group = 1}),
        std::pair(Lane::compute, Cost{.work = Work::network, .group = 0}),
        std::pair(Lane::network, Cost{.group = 0})}) {
    EXPECT_FAILS(emit(lane, cost), ErrorCode::internal, "gather exchanges with group");
  }
}

TEST(ProgramBuilder, DropsKernelsWhenRecordedForPlanning) {
  Recording r;
  r.set.executable = false;
  r.pb.emit("op", {}, [](const Bindings&) {});
  EXPECT_TRUE(r.set.programs[0].instructions.at(0).run == nullptr);
}

TEST(ProgramBuilder, NamesWithTheScopesThatAreOpen) {
  Recording r;
  const auto name_now = [&] { return r.spec(r.pb.temp("x", {1}, DType::f32)).name; };
  EXPECT_EQ(name_now(), "x");
  {
    const auto block = r.pb.scope("blocks.3");
    EXPECT_EQ(name_now(), "blocks.3.x");
    {
      const auto layer = r.pb.scope("ffn");
      r.pb.emit("linear", {}, [](const Bindings&) {});
      EXPECT_EQ(name_now(), "blocks.3.ffn.x");
    }
    EXPECT_EQ(name_now(), "blocks.3.x");
  }
  EXPECT_EQ(name_now(), "x");
  EXPECT_EQ(r.set.programs[0].instructions.at(0).name, "blocks.3.ffn.linear");
}

TEST(ProgramBuilder, GivesARoleToTheWholeBuffer) {
  Recording r;
  const Buffer x = r.pb.temp("x", {4, 6}, DType::f32);
  EXPECT_EQ(r.spec(x).role, Role::activation);
  r.pb.set_role(r.pb.rows(x, 1, 1), Role::checkpoint);
  EXPECT_EQ(r.spec(x).role, Role::checkpoint);
  EXPECT_EQ(r.spec(r.pb.workspace(10)).role, Role::workspace);
}

TEST(ProgramBuilder, SharesAWorkspaceOfTheLargestSize) {
  Recording r;
  EXPECT_FALSE(r.pb.shared_workspace(0));
  const Buffer shared = r.pb.shared_workspace(10);
  for (const std::int64_t bytes : {5, 20, 15}) EXPECT_EQ(r.pb.shared_workspace(bytes), shared);
  EXPECT_EQ(r.spec(shared).bytes, 20u);
  EXPECT_EQ(r.spec(shared).shape, (Shape{20}));
  EXPECT_NE(r.pb.workspace(10), shared);
}

// Shapes and names are kept beside the buffers that point to them.
TEST(ProgramSet, IsMovedWithItsShapesAndNames) {
  ProgramSet set;
  std::vector<Shape> shapes;
  std::vector<Buffer> buffers;
  {
    ProgramBuilder pb(set, "step");
    const auto scope = pb.scope("blocks.0");
    for (std::int64_t i = 0; i < 3000; ++i) {  // more than are found again, in several chunks
      shapes.push_back({i % 700 + 1, 3});
      buffers.push_back(pb.temp(fmt::format("x{}", i), shapes.back(), DType::f32));
    }
    pb.emit("fill", {.writes = {buffers[0]}}, [](const Bindings&) {});
  }
  ProgramSet moved = std::move(set);
  set = {};
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ASSERT_EQ(moved.spec(buffers[i]).shape, shapes[i]);
    ASSERT_EQ(moved.spec(buffers[i]).strides, row_major(shapes[i]));
    ASSERT_EQ(moved.name(buffers[i]), fmt::format("blocks.0.x{}", i));
  }
  const std::string_view name = moved.programs[0].instructions[0].name;
  EXPECT_EQ(name, "blocks.0.fill");
  EXPECT_EQ(name.data()[name.size()], '\0');  // a crash handler takes it for a C string
}

}  // namespace
}  // namespace ballast
