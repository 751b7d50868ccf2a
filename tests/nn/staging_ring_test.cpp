#include "nn/staging_ring.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "core/convert.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/fill.h"
#include "ops/linear/quantize_rows.h"
#include "plan/memory_plan.h"
#include "plan/runner.h"
#include "tests/support/errors.h"
#include "tests/support/raw_tensor_file.h"

namespace ballast {
namespace {

using test::content;
using test::RawTensorFile;

constexpr std::uint64_t kTiny = 1;  // the smallest ring: one block of payload per buffer

class StagingRingModes : public testing::TestWithParam<DiskMode> {
 protected:
  // Delivers tensor i in the given dtype; the buffer outlives the program.
  Buffer deliver(std::size_t i, DType dtype) {
    const StoredBytes from = file.stored(i);
    const Buffer to = pb.persistent("to", from.shape, dtype, Role::weights);
    deliveries.push_back({.from = from, .to = to, .to_scale = {}});
    return to;
  }

  RawTensorFile file;
  ProgramSet set;
  ProgramBuilder pb{set, "load"};
  std::vector<Delivery> deliveries;
};

TEST_P(StagingRingModes, TensorsOfAnySizeAtAnyByteArriveIntact) {
  struct Case {
    Shape shape;
    DType from, to;
    std::size_t gap;
  };
  const std::vector<Case> cases = {
      {{37, 129}, DType::f32, DType::f32, 1},     {{1}, DType::f32, DType::f32, 3},
      {{4097}, DType::f8_e5m2, DType::f32, 0},    {{2047}, DType::bf16, DType::bf16, 5},
      {{63, 65}, DType::bf16, DType::f32, 7},     {{63, 65}, DType::f32, DType::bf16, 4091},
      {{5, 1000}, DType::f16, DType::f32, 9},     {{0, 8}, DType::f32, DType::f32, 1},
      {{3, 2000}, DType::f32, DType::f8_e4m3, 2}, {{9000}, DType::f8_e4m3, DType::f8_e4m3, 1},
      {{1024}, DType::f32, DType::f32, 4096},     {{777}, DType::f64, DType::f32, 13},
  };
  for (const Case& c : cases) file.add(c.shape, c.from, c.gap);
  file.open(GetParam());
  ASSERT_EQ(file.stored(0).extent.file->mode(), GetParam());
  std::vector<Buffer> to;
  for (std::size_t i = 0; i < cases.size(); ++i) to.push_back(deliver(i, cases[i].to));
  StagingRing ring(pb, kTiny);
  std::ranges::reverse(deliveries);  // the ring reads in the order of the file anyway
  ring.deliver(pb, deliveries, Lane::upload);
  EXPECT_GT(set.programs[0].instructions.size(), 2u * 10);  // cut into many pieces
  const MemoryPlan plan = plan_memory(set);
  EXPECT_EQ(plan.peak_of(Tier::host).count, StagingRing::kLoading.buffers * 3 * kDiskAlignment);
  for (const RunnerDebug& debug : {RunnerDebug{}, RunnerDebug{.order = Order::recorded},
                                   RunnerDebug{.order = Order::random, .random_seed = 3}}) {
    Runner runner(set, plan, {.disk_readers = 3, .debug = debug});
    runner.run("load");
    for (std::size_t i = 0; i < to.size(); ++i) {
      EXPECT_TRUE(content(runner.view(to[i])) == file.as(i, cases[i].to)) << "tensor " << i;
    }
  }
}

TEST_P(StagingRingModes, QuantisesAsInOnePiece) {
  const std::vector<std::size_t> tensors = {file.add({33, 65}, DType::f32, 3),
                                            file.add({70, 129}, DType::bf16, 1),
                                            file.add({5, 1023}, DType::f16, 11)};
  file.open(GetParam());
  struct Made {
    Buffer q, scale;
  };
  std::vector<Made> made;
  for (const std::size_t i : tensors) {
    const Shape shape = file.stored(i).shape;
    const Buffer q = pb.persistent("q", shape, DType::i8, Role::weights);
    const Buffer scale = pb.persistent("s", {shape[0]}, DType::f32, Role::weights);
    deliveries.push_back({.from = file.stored(i), .to = q, .to_scale = scale});
    made.push_back({q, scale});
  }
  StagingRing ring(pb, kTiny);
  ring.deliver(pb, deliveries, Lane::upload);
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run("load");
  runner.run("load");  // reads again what was moved inside the ring
  ThreadPool pool(1);
  for (const std::size_t i : tensors) {
    const StoredBytes s = file.stored(i);
    std::string w = file.as(i, s.dtype);  // a string's memory is aligned
    std::string q(to_size(s.shape.elements()), '\0');
    std::vector<float> scale(to_size(s.shape[0]));
    const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
    ops::quantize_rows({.w = TensorView(bytes(w), s.dtype, s.shape),
                        .q = TensorView(bytes(q), DType::i8, s.shape),
                        .scale = TensorView(bytes(scale), DType::f32, {s.shape[0]})},
                       {.pool = &pool});
    EXPECT_TRUE(content(runner.view(made[i].q)) == q) << "tensor " << i;
    const float* got = runner.view(made[i].scale).as<float>();
    EXPECT_TRUE(std::equal(scale.begin(), scale.end(), got)) << "tensor " << i;
  }
}

TEST_P(StagingRingModes, RowsThatLieApartArriveWithNothingBetweenThemTouched) {
  const struct {
    DType from, to;
  } cases[] = {{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::f32, DType::bf16}};
  for (const auto& c : cases) file.add({70, 65}, c.from, 3);
  file.open(GetParam());
  std::vector<Buffer> wide;
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    wide.push_back(pb.persistent("wide", {72, 80}, cases[i].to, Role::weights));
    ops::fill(pb, wide.back(), 7);
    deliveries.push_back({.from = file.stored(i),
                          .to = pb.columns(pb.rows(wide.back(), 0, 70), 0, 65),
                          .to_scale = {}});
  }
  StagingRing ring(pb, kTiny);
  ring.deliver(pb, deliveries, Lane::upload);
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  runner.run("load");
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    const std::string got = content(runner.view(wide[i])), want = file.as(i, cases[i].to);
    const std::size_t size = size_of(cases[i].to);
    std::string seven(size, '\0');
    const float value = 7;
    convert(&value, DType::f32, seven.data(), cases[i].to, 1);
    for (std::size_t e = 0; e < 72 * 80; ++e) {
      const std::size_t row = e / 80, column = e % 80;
      const bool inside = row < 70 && column < 65;
      ASSERT_EQ(got.substr(e * size, size),
                inside ? want.substr((row * 65 + column) * size, size) : seven)
          << i << ' ' << row << ' ' << column;
    }
  }
}

TEST_P(StagingRingModes, SmallTensorsShareABuffer) {
  for (int i = 0; i < 20; ++i) file.add({7}, DType::f32, 1);
  file.open(GetParam());
  for (std::size_t i = 0; i < 20; ++i) deliver(i, DType::f32);
  StagingRing ring(pb, 2 * 20 * 4096);
  ring.deliver(pb, deliveries, Lane::host);
  ASSERT_EQ(set.programs[0].instructions.size(), 2u);
  EXPECT_EQ(set.programs[0].instructions[0].lane, Lane::disk);
  EXPECT_EQ(set.programs[0].instructions[1].lane, Lane::host);
}

TEST_P(StagingRingModes, AFileThatEndsTooEarlyIsAnErrorOfTheDiskLane) {
  for (int i = 0; i < 6; ++i) file.add({3000}, DType::f32, 1);
  file.open(GetParam());
  for (std::size_t i = 0; i < 6; ++i) deliver(i, DType::f32);
  for (const std::uint64_t missing : {1u, 20000u}) {  // a byte, and whole blocks
    deliveries.back().from.extent.offset = file.stored(5).extent.offset + missing;
    ProgramSet other;
    ProgramBuilder short_load(other, "load");
    for (Delivery& d : deliveries) {
      d.to = short_load.persistent("to", {3000}, DType::f32, Role::weights);
    }
    StagingRing ring(short_load, kTiny);
    const auto scope = short_load.scope("blocks.5");
    ring.deliver(short_load, deliveries, Lane::upload);
    const MemoryPlan plan = plan_memory(other);
    Runner runner(other, plan);
    const auto error = test::error_of([&] { runner.run("load"); });
    ASSERT_TRUE(error.has_value()) << missing << " bytes too far";
    EXPECT_EQ(error->code(), ErrorCode::input);
    EXPECT_THAT(error->what(), testing::HasSubstr(file.path()));
    EXPECT_THAT(error->trail(), testing::Contains("running blocks.5.read of program load"));
  }
}

TEST_P(StagingRingModes, AFileThatShrinksIsAnErrorAndTheRunnerGoesOnWhenItIsBack) {
  file.add({3000}, DType::f32, 1);
  file.open(GetParam());
  const Buffer to = deliver(0, DType::f32);
  StagingRing ring(pb, kTiny);
  ring.deliver(pb, deliveries, Lane::upload);
  const MemoryPlan plan = plan_memory(set);
  Runner runner(set, plan);
  const std::string whole = test::read_whole(file.path());
  const auto written = std::filesystem::last_write_time(file.path());
  std::filesystem::resize_file(file.path(), 5000);
  EXPECT_FAILS(runner.run("load"), ErrorCode::input, "shrank");
  std::ofstream(file.path(), std::ios::binary | std::ios::in | std::ios::out) << whole;
  EXPECT_FAILS(runner.run("load"), ErrorCode::input, "changed while it was in use");
  std::filesystem::last_write_time(file.path(), written);  // as if nobody had touched it
  runner.run("load");
  EXPECT_TRUE(content(runner.view(to)) == file.as(0, DType::f32));
}

INSTANTIATE_TEST_SUITE_P(Modes, StagingRingModes,
                         testing::Values(DiskMode::direct, DiskMode::buffered), [](const auto& of) {
                           return of.param == DiskMode::direct ? "direct" : "buffered";
                         });

TEST(StagingRing, RefusesARowThatFitsNoBuffer) {
  RawTensorFile file;
  file.add({2, 5000}, DType::f32, 0);
  file.open(DiskMode::buffered);
  ProgramSet set;
  ProgramBuilder pb(set, "load");
  const Buffer q = pb.persistent("q", {2, 5000}, DType::i8, Role::weights);
  const Buffer scale = pb.persistent("s", {2}, DType::f32, Role::weights);
  StagingRing ring(pb, kTiny);
  EXPECT_FAILS(
      ring.deliver(pb, {{.from = file.stored(0), .to = q, .to_scale = scale}}, Lane::upload),
      ErrorCode::internal, "a row of [2, 5000] does not fit");
}

// So that all hands of the disk lane read one buffer and it is copied as soon as they are done.
TEST(StagingRing, EveryRequestIsAPartOfItsRead) {
  RawTensorFile file;
  constexpr std::int64_t kValues = 11 << 18;  // 11 MiB, from byte 100 on
  file.add({kValues}, DType::f32, 100);
  file.open(DiskMode::buffered);
  ProgramSet set;
  ProgramBuilder pb(set, "load");
  const Buffer to = pb.persistent("to", {kValues}, DType::f32, Role::weights);
  StagingRing ring(pb, 1ull << 40);
  ring.deliver(pb, {{.from = file.stored(0), .to = to, .to_scale = {}}}, Lane::upload);
  std::vector<std::uint32_t> parts;
  for (const Instruction& i : set.programs[0].instructions) {
    if (i.lane == Lane::disk) parts.push_back(i.splits);
  }
  EXPECT_THAT(parts, testing::ElementsAre(16, 6));
  const MemoryPlan plan = plan_memory(set);
  for (const int readers : {1, 4, kDiskReaders}) {
    Runner runner(set, plan, {.disk_readers = readers});
    for (int again = 0; again < 2; ++again) {
      std::ranges::fill(std::span(runner.view(to).data, runner.view(to).bytes()), std::byte{1});
      runner.run("load");
      EXPECT_TRUE(content(runner.view(to)) == file.as(0, DType::f32)) << readers << " readers";
    }
  }
}

// A disk takes requests apart into parts of its own size: all but the ends of a tensor are whole.
TEST(StagingRing, CutsLargeTensorsAtMultiplesOfARequestInTheFile) {
  ProgramSet set;
  set.executable = false;
  ProgramBuilder pb(set, "load");
  constexpr std::uint64_t kOffset = 5'001'000, kMiB = 1 << 20;
  const Shape shape = {4096, 4096};
  const Buffer to = pb.persistent("to", shape, DType::bf16, Role::weights);
  StagingRing ring(pb, 1ull << 40);
  ring.deliver(
      pb, {{.from = {shape, DType::bf16, {nullptr, kOffset, 32 * kMiB}}, .to = to, .to_scale = {}}},
      Lane::upload);
  std::vector<double> reads;
  for (const Instruction& i : set.programs[0].instructions) {
    if (i.lane == Lane::disk) reads.push_back(i.cost.bytes);
  }
  // From block 1,220 to 12.5 MiB, three times 8 MiB, the rest to the block behind the last byte.
  const std::uint64_t first = kOffset / 4096 * 4096, end = kOffset + 32 * kMiB;
  EXPECT_THAT(reads, testing::ElementsAre(25 * kMiB / 2 - first, 8 * kMiB, 8 * kMiB, 8 * kMiB,
                                          (end + 4095) / 4096 * 4096 - 73 * kMiB / 2));
}

TEST(StagingRing, IsNeverLargerThanItsBuffers) {
  ProgramSet set;
  ProgramBuilder pb(set, "load");
  const StagingRing ring(pb, 1ull << 40);
  EXPECT_EQ(plan_memory(set).peak_of(Tier::host).count,
            StagingRing::kLoading.buffers * StagingRing::kLoading.buffer);
}

}  // namespace
}  // namespace ballast
