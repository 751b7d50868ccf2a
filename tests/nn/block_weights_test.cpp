#include "nn/block_weights.h"

#include <gmock/gmock.h>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/linear/quantize_rows.h"
#include "plan/bindings.h"
#include "plan/memory_plan.h"
#include "plan/runner.h"
#include "tests/support/errors.h"
#include "tests/support/raw_tensor_file.h"

namespace ballast {
namespace {

using test::content;
using test::RawTensorFile;
using testing::ElementsAre;

// Six blocks of a matrix and a bias; a step goes through them forward and backward and keeps what
// it saw of each.
class BlockWeightsTest : public testing::Test {
 protected:
  static constexpr int kGroups = 6;
  static constexpr std::int64_t kRows = 9, kColumns = 31;

  void make_file(DType matrix = DType::f32, bool scaled = false) {
    for (int g = 0; g < kGroups; ++g) {
      file.add({kRows, kColumns}, matrix, 3);
      file.add({kRows}, DType::bf16, 1);
      file.add({1}, DType::f32, 2);
    }
    file.open(DiskMode::automatic);
    for (std::size_t g = 0; g < kGroups; ++g) {
      WeightGroup group{.name = "blocks." + std::to_string(g), .tensors = {}};
      group.tensors.push_back({"weight", file.stored(3 * g), std::nullopt});
      if (scaled) group.tensors[0].scale = file.stored(3 * g + 2);
      group.tensors.push_back({"bias", file.stored(3 * g + 1), std::nullopt});
      groups.push_back(group);
    }
  }
  static std::size_t matrix(int g) { return 3 * to_size(g); }
  static std::size_t bias(int g) { return matrix(g) + 1; }
  static std::size_t scale(int g) { return matrix(g) + 2; }

  enum class Between { empty, first };  // slots between programs
  void declare(const MemoryPolicy& policy, WeightFormat format = WeightFormat::stored,
               Between between = Between::empty) {
    ProgramBuilder load(set, "load");
    weights.emplace(load, std::vector<std::vector<WeightGroup>>{groups}, policy, format);
    if (between == Between::first) weights->keep_first_in_slots();
    weights->load(load, 0);
  }

  // Uses a group on the compute lane, copying its tensors out.
  struct Seen {
    int group;
    Buffer data, scale, bias;
  };
  void use(ProgramBuilder& pb, int g) {
    const auto w = weights->use(pb, g);
    Seen s{.group = g, .data = {}, .scale = {}, .bias = {}};
    const auto keep = [&](Buffer from) {
      if (!from) return Buffer();
      const Buffer to = pb.persistent("seen", pb.shape(from), pb.dtype(from), Role::output);
      pb.emit("see", {.reads = {from}, .writes = {to}}, [from, to](const Bindings& b) {
        std::memcpy(b.out(to).data, b.in(from).data, b.in(from).bytes());
      });
      return to;
    };
    s.data = keep(w[0].data);
    s.scale = keep(w[0].scale);
    s.bias = keep(w[1].data);
    seen.push_back(s);
  }
  void record_step(std::string_view name) {
    ProgramBuilder pb(set, name);
    weights->begin_program(pb);
    for (int g = 0; g < kGroups; ++g) use(pb, g);
    for (int g = kGroups; g-- > 0;) use(pb, g);
    weights->end_program(pb);
  }

  // The groups that a program brings in, in order, by the scope of the given instruction.
  std::vector<std::string> brought(std::string_view program, std::string_view what) const {
    std::vector<std::string> names;
    const auto p = to_size(set.program_index(program));
    for (const Instruction& i : set.programs[p].instructions) {
      if (i.name.ends_with(what)) names.emplace_back(i.name.substr(0, i.name.find(what)));
    }
    return names;
  }

  void run_and_compare(DType dtype, bool scaled) {
    const MemoryPlan plan = plan_memory(set);
    for (const RunnerDebug& debug :
         {RunnerDebug{}, RunnerDebug{.order = Order::random, .random_seed = 1, .poison = true}}) {
      Runner runner(set, plan, {.disk_readers = 2, .debug = debug});
      runner.run("load");
      for (int run = 0; run < 2; ++run) {
        runner.run("step");
        for (const Seen& s : seen) {
          EXPECT_TRUE(content(runner.view(s.data)) == file.as(matrix(s.group), dtype)) << s.group;
          EXPECT_TRUE(content(runner.view(s.bias)) == file.as(bias(s.group), DType::bf16));
          ASSERT_EQ(static_cast<bool>(s.scale), scaled) << s.group;
          if (scaled) {
            EXPECT_TRUE(content(runner.view(s.scale)) == file.as(scale(s.group), DType::f32));
          }
        }
      }
    }
  }

  RawTensorFile file;
  std::vector<WeightGroup> groups;
  ProgramSet set;
  std::optional<BlockWeights> weights;
  std::vector<Seen> seen;
};

TEST_F(BlockWeightsTest, ResidentOnesAreReadOnceAndStay) {
  make_file();
  declare({});
  record_step("step");
  for (const Instruction& i : set.programs[1].instructions) EXPECT_EQ(i.name, "see");
  run_and_compare(DType::f32, false);
}

TEST_F(BlockWeightsTest, TheTurnFromForwardToBackwardReloadsNothing) {
  make_file();
  declare({.streaming = Streaming{.slots = 2}});
  record_step("step");
  EXPECT_THAT(brought("step", ".copy_out"),
              ElementsAre("blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.4", "blocks.5",
                          "blocks.3", "blocks.2", "blocks.1", "blocks.0"));
  run_and_compare(DType::f32, false);
}

TEST_F(BlockWeightsTest, TheLeastRecentlyUsedSlotIsGivenAway) {
  make_file();
  declare({.streaming = Streaming{.slots = 3}});
  ProgramBuilder pb(set, "step");
  weights->begin_program(pb);
  for (const int g : {0, 1, 2, 0, 3, 0, 2, 1, 0}) use(pb, g);
  weights->end_program(pb);
  // 3 takes the place of 1, not of 0 or 2; then 1 takes that of 3.
  EXPECT_THAT(brought("step", ".copy_out"),
              ElementsAre("blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.1"));
  run_and_compare(DType::f32, false);
}

TEST_F(BlockWeightsTest, OneSlotIsEnough) {
  make_file(DType::bf16);
  declare({.streaming = Streaming{.slots = 1}});
  record_step("step");
  EXPECT_EQ(brought("step", ".copy_out").size(), 2u * kGroups - 1);
  run_and_compare(DType::bf16, false);
}

TEST_F(BlockWeightsTest, AProgramStartsWithEmptySlots) {
  make_file();
  declare({.streaming = Streaming{.slots = 6}});
  record_step("step");
  record_step("again");  // the slots would still hold everything, but who knows what ran between
  EXPECT_EQ(brought("step", ".copy_out").size(), 6u);
  EXPECT_EQ(brought("again", ".copy_out").size(), 6u);
}

TEST_F(BlockWeightsTest, AStepBeginsWithWhatTheOneBeforeEndedWith) {
  make_file();
  declare({.streaming = Streaming{.slots = 2}}, WeightFormat::stored, Between::first);
  record_step("step");
  EXPECT_THAT(brought("step", ".copy_out"),
              ElementsAre("blocks.2", "blocks.3", "blocks.4", "blocks.5", "blocks.3", "blocks.2",
                          "blocks.1", "blocks.0"));
  run_and_compare(DType::f32, false);
}

TEST_F(BlockWeightsTest, APassThatEndsElsewhereBringsTheFirstGroupsBackWhenTheirPlacesAreFree) {
  for (const StreamSource stream_from : {StreamSource::host, StreamSource::disk}) {
    file = {}, groups = {}, set = {}, seen = {};
    make_file();
    declare({.streaming = Streaming{.slots = 2, .resident_groups = 1, .stream_from = stream_from}},
            WeightFormat::int8_rows, Between::first);
    for (const char* name : {"step", "again"}) {
      ProgramBuilder pb(set, name);
      weights->begin_program(pb);
      for (int g = 0; g < kGroups; ++g) use(pb, g);
      weights->end_program(pb);
      // Behind the last uses of what stood there, not behind all of the program.
      const auto& code = set.programs.back().instructions;
      EXPECT_EQ(code.back().lane, Lane::compute);
      EXPECT_GE(std::ranges::count(code, Lane::upload, &Instruction::lane), 5);
    }
    const MemoryPlan plan = plan_memory(set);
    Runner runner(set, plan, {.disk_readers = 2, .debug = {.order = Order::random}});
    runner.run("load");
    for (const char* name : {"step", "again", "again", "step"}) runner.run(name);
    for (std::size_t i = 0; i < kGroups; ++i) {
      EXPECT_TRUE(content(runner.view(seen[i].data)) ==
                  content(runner.view(seen[i + kGroups].data)));
      EXPECT_TRUE(content(runner.view(seen[i].scale)) ==
                  content(runner.view(seen[i + kGroups].scale)));
    }
  }
}

TEST_F(BlockWeightsTest, ResidentGroupsAreEvenlySpacedAndNeverStream) {
  make_file();
  declare({.streaming = Streaming{.slots = 1, .resident_groups = 2}});
  std::vector<int> resident;
  for (int g = 0; g < kGroups; ++g) {
    if (weights->resident(g)) resident.push_back(g);
  }
  EXPECT_THAT(resident, ElementsAre(2, 5));
  record_step("step");
  EXPECT_THAT(brought("step", ".copy_out"),
              ElementsAre("blocks.0", "blocks.1", "blocks.3", "blocks.4", "blocks.3", "blocks.1",
                          "blocks.0"));
  run_and_compare(DType::f32, false);
}

TEST_F(BlockWeightsTest, SlotsHoldTheMatricesOfOneGroup) {
  make_file();
  declare({.streaming = Streaming{.slots = 2}});
  const MemoryPlan plan = plan_memory(set);
  std::uint64_t slots = 0;
  for (const BufferSpec& s : set.buffers) slots += s.role == Role::weight_slots ? s.bytes : 0;
  EXPECT_EQ(slots, 2u * 1280);  // 9 x 31 x 4 = 1116, aligned to 256
}

TEST_F(BlockWeightsTest, TheRingHasBuffersInReserveWhereOneSlotIsFilledFromDisk) {
  make_file();
  const std::pair<MemoryPolicy, int> all[] = {
      {{}, 3},
      {{.streaming = Streaming{.slots = 2}}, 6},
      {{.streaming = Streaming{.slots = 1, .stream_from = StreamSource::host}}, 3},
      {{.streaming = Streaming{.slots = 1}}, 8},
      {{.streaming = Streaming{.slots = 1, .extra_ring_buffers = 4}}, 12}};
  for (const auto& [policy, buffers] : all) {
    set = {};
    declare(policy);
    EXPECT_EQ(std::ranges::count(set.buffers, Role::staging, &BufferSpec::role), buffers)
        << policy.stream().slots << " slots";
  }
}

TEST_F(BlockWeightsTest, FromHostMemoryNoStepReadsTheDisk) {
  make_file();
  declare({.streaming = Streaming{.slots = 2, .stream_from = StreamSource::host}});
  record_step("step");
  for (const Instruction& i : set.programs[1].instructions) EXPECT_NE(i.lane, Lane::disk);
  EXPECT_EQ(brought("step", "upload_weights").size(), 10u);
  run_and_compare(DType::f32, false);
}

TEST_F(BlockWeightsTest, InPartsEveryUseBringsItsMatrixAsFarAheadAsAsked) {
  make_file();
  for (const StreamSource stream_from : {StreamSource::disk, StreamSource::host}) {
    set = {};
    seen.clear();
    declare({.streaming = Streaming{.slots = 1, .matrices_ahead = 2, .stream_from = stream_from}});
    record_step("step");
    const std::string_view arrival =
        stream_from == StreamSource::host ? "upload_weights" : "copy_out";  // one piece each
    int arrived = 0, used = 0;
    for (const Instruction& i : set.programs[1].instructions) {
      if (i.name.ends_with(arrival)) ++arrived;
      if (i.name != "see" || set.spec(i.reads[0]).role != Role::weight_slots) continue;
      ++used;
      EXPECT_EQ(arrived, std::min(used + 2, 2 * kGroups)) << used;
    }
    EXPECT_EQ(used, 2 * kGroups);
    const MemoryPlan plan = plan_memory(set);
    // Three matrices of 1116 bytes; temporaries begin at a multiple of 256.
    const std::uint64_t persistent = plan.persistent[0].count;
    EXPECT_EQ(plan.programs[1].tier(Tier::device).peak.count,
              (persistent + 255) / 256 * 256 + 3 * 1280);
    run_and_compare(DType::f32, false);
  }
}

TEST_F(BlockWeightsTest, InPartsWhatNobodyUsesIsNotBrought) {
  make_file();
  declare(
      {.streaming = Streaming{.slots = 1, .matrices_ahead = 1, .stream_from = StreamSource::host}});
  ProgramBuilder pb(set, "step");
  weights->begin_program(pb);
  weights->use(pb, 0);
  use(pb, 1);
  weights->end_program(pb);
  EXPECT_EQ(brought("step", "upload_weights").size(), 1u);
  run_and_compare(DType::f32, false);
}

// Two rows and a column behind every other group's matrix, filled with the group's number.
TEST_F(BlockWeightsTest, MarginsComeWithTheirMatricesAndAreFilledWhereverTheseStand) {
  make_file();
  const RowPaddings paddings = [](int group, std::size_t tensor, DType) {
    return group % 2 == 0 && tensor == 0 ? RowPadding{.rows = 2, .columns = 1} : RowPadding{};
  };
  const auto fill = [](ProgramBuilder& pb, int group, std::size_t, const WeightBuffers& w) {
    const auto value = static_cast<float>(group);
    ops::fill(pb, pb.rows(w.wide, kRows, 2), value);
    ops::fill(pb, pb.columns(pb.rows(w.wide, 0, kRows), kColumns, 1), value);
  };
  const MemoryPolicy policies[] = {
      {},
      {.streaming = Streaming{.slots = 2}},
      {.streaming = Streaming{.slots = 4, .stream_from = StreamSource::host}},
      {.streaming = Streaming{.slots = 1, .resident_groups = 2, .stream_from = StreamSource::host}},
      {.streaming = Streaming{.slots = 1, .resident_groups = 1, .host_groups = 2}},
      {.streaming = Streaming{.slots = 1, .matrices_ahead = 2}},
      {.streaming = Streaming{.slots = 1, .matrices_ahead = 1, .stream_from = StreamSource::host}}};
  for (const MemoryPolicy& policy : policies) {
    set = {};
    {
      ProgramBuilder load(set, "load");
      weights.emplace(load, std::vector<std::vector<WeightGroup>>{groups}, policy,
                      WeightFormat::stored, paddings);
      weights->keep_first_in_slots();
      weights->load(load, 0);
    }
    std::vector<std::pair<int, Buffer>> seen_wide;
    {
      ProgramBuilder pb(set, "step");
      weights->begin_program(pb, fill);
      for (const int g : {0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0}) {
        const WeightBuffers w = weights->use(pb, g)[0];
        ASSERT_EQ(static_cast<bool>(w.wide), g % 2 == 0);
        ASSERT_EQ(pb.shape(w.data), Shape({kRows, kColumns}));
        if (w.wide && weights->resident(g)) fill(pb, g, 0, w);
        const Buffer from = w.wide ? w.wide : w.data;
        seen_wide.emplace_back(g,
                               pb.persistent("seen", pb.shape(from), pb.dtype(from), Role::output));
        ops::copy(pb, from, seen_wide.back().second);
      }
      weights->end_program(pb);
    }
    const MemoryPlan plan = plan_memory(set);
    Runner runner(
        set, plan,
        {.disk_readers = 2, .debug = {.order = Order::random, .random_seed = 1, .poison = true}});
    runner.run("load");
    for (int run = 0; run < 2; ++run) {
      runner.run("step");
      for (const auto& [g, b] : seen_wide) {
        const TensorView got = runner.view(b);
        const std::string want = file.as(matrix(g), DType::f32);
        for (std::int64_t i = 0; i < got.elements(); ++i) {
          const std::int64_t row = i / got.shape[1], column = i % got.shape[1];
          auto value = static_cast<float>(g);
          if (row < kRows && column < kColumns) {
            std::memcpy(&value, want.data() + (row * kColumns + column) * 4, 4);
          }
          ASSERT_EQ(got.as<float>()[i], value) << policy.stream().slots << ' ' << g << ' ' << i;
        }
      }
    }
  }
}

TEST_F(BlockWeightsTest, PartsAreAWayToStream) {
  make_file();
  EXPECT_FAILS(declare({.streaming = Streaming{.slots = 0}}), ErrorCode::internal,
               "at least one slot");
}

TEST_F(BlockWeightsTest, AChangeAtHomeIsSeenByTheNextUse) {
  make_file();
  declare({.streaming = Streaming{.slots = 1, .stream_from = StreamSource::host}});
  ProgramBuilder update(set, "update");
  const Buffer w = weights->persistent(update, 3)[0].data;
  EXPECT_EQ(update.tier(w), Tier::host);
  EXPECT_EQ(update.shape(w), Shape({kRows, kColumns}));
  update.emit("change", {.writes = {w}, .lane = Lane::host}, [w](const Bindings& b) {
    std::fill_n(b.out(w).as<float>(), b.out(w).elements(), 42.0f);
  });
  record_step("step");
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run("load");
  runner.run("update");
  runner.run("step");
  for (const Seen& s : seen) {
    const TensorView v = runner.view(s.data);
    if (s.group != 3) {
      EXPECT_TRUE(content(v) == file.as(matrix(s.group), DType::f32)) << s.group;
    } else {
      EXPECT_EQ(v.as<float>()[0], 42);
      EXPECT_EQ(v.as<float>()[kRows * kColumns - 1], 42);
    }
  }
}

TEST_F(BlockWeightsTest, WhatStreamsFromItsFileHasNoHome) {
  make_file();
  declare({.streaming = Streaming{.slots = 1}});
  ProgramBuilder update(set, "update");
  EXPECT_FAILS(weights->persistent(update, 0), ErrorCode::internal,
               "has no persistent copy to change");
}

TEST_F(BlockWeightsTest, ConvertOnTheWay) {
  make_file(DType::f32);
  declare({.streaming = Streaming{.slots = 2}}, WeightFormat::bf16);
  record_step("step");
  run_and_compare(DType::bf16, false);
}

TEST_F(BlockWeightsTest, ScalesOfStoredEightBitWeightsComeAlongFromEverywhere) {
  make_file(DType::f8_e4m3, /*scaled=*/true);
  for (const MemoryPolicy& policy :
       {MemoryPolicy{}, MemoryPolicy{.streaming = Streaming{.slots = 2}},
        MemoryPolicy{.streaming = Streaming{.slots = 2, .stream_from = StreamSource::host}}}) {
    set = {};
    seen.clear();
    declare(policy);
    record_step("step");
    run_and_compare(DType::f8_e4m3, true);
  }
}

TEST_F(BlockWeightsTest, QuantisedScalesTravelWithTheirMatrix) {
  make_file();
  const MemoryPolicy policies[] = {
      {},
      {.streaming = Streaming{.slots = 2}},
      {.streaming = Streaming{.slots = 1, .matrices_ahead = 1}},
      {.streaming = Streaming{.slots = 2, .stream_from = StreamSource::host}},
      {.streaming = Streaming{.slots = 1, .matrices_ahead = 1, .stream_from = StreamSource::host}}};
  for (int i = 0; i < 10; ++i) {
    const bool fp8 = i >= 5;
    set = {};
    seen.clear();
    declare(policies[i % 5], fp8 ? WeightFormat::f8_e4m3_rows : WeightFormat::int8_rows);
    record_step("step");
    const MemoryPlan plan = plan_memory(set);
    Runner runner(set, plan);
    runner.run("load");
    runner.run("step");
    ThreadPool pool(1);
    for (const Seen& s : seen) {
      std::string w = file.as(matrix(s.group), DType::f32);
      std::string q(kRows * kColumns, '\0'), scales(kRows * 4, '\0');
      const auto view = [](std::string& bytes, DType dtype, const Shape& shape) {
        return TensorView(reinterpret_cast<std::byte*>(bytes.data()), dtype, shape);
      };
      ops::quantize_rows({.w = view(w, DType::f32, {kRows, kColumns}),
                          .q = view(q, fp8 ? DType::f8_e4m3 : DType::i8, {kRows, kColumns}),
                          .scale = view(scales, DType::f32, {kRows})},
                         {.pool = &pool});
      ASSERT_TRUE(s.scale);
      EXPECT_TRUE(content(runner.view(s.data)) == q) << s.group;
      EXPECT_TRUE(content(runner.view(s.scale)) == scales) << s.group;
    }
  }
}

TEST_F(BlockWeightsTest, KeptPrecisionIsNeverNarrowed) {
  make_file();
  groups[1].keep_precision = true;
  declare({.streaming = Streaming{.slots = 2}}, WeightFormat::int8_rows);
  ProgramBuilder pb(set, "step");
  EXPECT_EQ(pb.dtype(weights->use(pb, 0)[0].data), DType::i8);
  EXPECT_EQ(pb.dtype(weights->use(pb, 1)[0].data), DType::f32);
  EXPECT_EQ(pb.dtype(weights->use(pb, 0)[1].data), DType::bf16);  // vectors stay as they are
}

TEST_F(BlockWeightsTest, WhatAGroupTakesInHostMemoryIsKnownBeforehand) {
  make_file();
  groups[1].keep_precision = true;
  for (const WeightFormat format : {WeightFormat::stored, WeightFormat::bf16, WeightFormat::f8_e4m3,
                                    WeightFormat::f8_e4m3_rows, WeightFormat::int8_rows}) {
    set = {};
    declare({.streaming = Streaming{.slots = 1, .stream_from = StreamSource::host}}, format);
    for (const WeightGroup& g : groups) {
      const auto persistent = std::ranges::find(set.buffers, g.name + ".host", &BufferSpec::name);
      ASSERT_NE(persistent, set.buffers.end()) << g.name;
      EXPECT_EQ(BlockWeights::streamed_bytes(g, format).count, persistent->bytes)
          << g.name << ", " << name_of(format);
    }
  }
}

TEST(WeightFormatNames, LeadBack) {
  for (const WeightFormat f :
       {WeightFormat::stored, WeightFormat::f32, WeightFormat::bf16, WeightFormat::f8_e4m3,
        WeightFormat::f8_e4m3_rows, WeightFormat::int8_rows}) {
    EXPECT_EQ(find_weight_format(name_of(f)), f);
  }
  EXPECT_FALSE(find_weight_format("int4").has_value());
}

}  // namespace
}  // namespace ballast
