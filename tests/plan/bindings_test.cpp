#include "plan/bindings.h"

#include <gtest/gtest.h>

#include <array>

#include "plan/program_builder.h"
#include "tests/support/errors.h"

namespace ballast {
namespace {

// One instruction, "ffn.up", that reads x and writes columns of y.
class BindingsTest : public testing::Test {
 protected:
  const Instruction& up() {
    const auto scope = pb.scope("ffn");
    pb.emit("up", {.reads = {x}, .writes = {right}}, [](const Bindings&) {});
    return set.programs[0].instructions.at(0);
  }

  ProgramSet set;
  ProgramBuilder pb{set, "p"};
  Buffer x = pb.persistent("x", {4, 2}, DType::f32, Role::input, Tier::host);
  Buffer y = pb.temp("y", {4, 6}, DType::bf16);
  Buffer right = pb.columns(y, 4, 2);

  alignas(256) std::array<std::byte, 1024> device{}, host{};
  ArenaBases arenas{{device.data(), host.data()}};
  std::vector<std::uint64_t> offsets{64, 256, 0};
  StepValues step{.step = 7, .seed = 3};
  HighWater high_water;
  Bindings b{set, offsets, arenas, up(), step, Stream{}, &high_water};
};

TEST_F(BindingsTest, GivesTheMemoryOfWhatIsDeclared) {
  const ConstTensorView in = b.in(x);
  EXPECT_EQ(in.data, host.data() + 64);
  EXPECT_EQ(in.shape, Shape({4, 2}));
  const TensorView out = b.out(right);
  EXPECT_EQ(out.data, device.data() + 256 + 4 * 2);
  EXPECT_EQ(out.dtype, DType::bf16);
  EXPECT_EQ(out.strides, Shape({6, 1}));
  EXPECT_EQ(b.step().step, 7);
}

TEST_F(BindingsTest, RefusesAnUndeclaredReadNamingInstructionAndBuffer) {
  EXPECT_FAILS(b.in(right), ErrorCode::internal, "ffn.up reads y without declaring it");
  EXPECT_FAILS(b.in(y), ErrorCode::internal, "ffn.up reads y");  // its view was declared, not it
}

TEST_F(BindingsTest, RefusesAnUndeclaredWriteNamingInstructionAndBuffer) {
  EXPECT_FAILS(b.out(x), ErrorCode::internal, "ffn.up writes x without declaring it");
  EXPECT_FAILS(b.out(Buffer{99}), ErrorCode::internal, "99");
}

TEST_F(BindingsTest, GivesAnEmptyViewForAnAbsentOperandOnly) {
  EXPECT_FALSE(b.in_if(Buffer()));
  EXPECT_FALSE(b.out_if(Buffer()));
  EXPECT_EQ(b.in_if(x).data, host.data() + 64);
  EXPECT_EQ(b.out_if(right).data, device.data() + 264);
  EXPECT_FAILS(b.in_if(y), ErrorCode::internal, "ffn.up reads y");
  EXPECT_FAILS(b.out_if(x), ErrorCode::internal, "ffn.up writes x");
}

TEST_F(BindingsTest, RefusesAGroupThatWasNotDeclared) {
  EXPECT_FAILS(b.group(0), ErrorCode::internal, "ffn.up exchanges with group 0");
  EXPECT_FAILS(b.group(-1), ErrorCode::internal, "ffn.up exchanges with group -1");
}

TEST_F(BindingsTest, MarksTheHighestByteHandedOutInEachTier) {
  b.in(x);
  EXPECT_EQ(high_water.top[1], 64u + 32);
  EXPECT_EQ(high_water.top[0], 0u);
  b.out(right);
  EXPECT_EQ(high_water.top[0], 256u + 4 * 6 * 2);
  EXPECT_FAILS(b.out(y), ErrorCode::internal, "y");  // a refusal hands nothing out
  EXPECT_EQ(high_water.top[0], 256u + 48);
}

}  // namespace
}  // namespace ballast
