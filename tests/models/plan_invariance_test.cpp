// However a run is planned, its results have the same bits.

#include <gtest/gtest.h>

#include "tests/support/test_device.h"
#include "tests/support/tiny_dit.h"

namespace ballast::support::plan_invariance_test {
namespace {

using wan::Mode;

constexpr Mode kModes[] = {Mode::infer, Mode::lora, Mode::full};

// 600 and 90 tokens: the first is cut into three chunks of a quantum, or two of two quanta, with a
// rest; the second is smaller than any chunk. The first has two timesteps.
const std::vector<wan::LatentSize> kThreeChunks = {{3, 20, 40}, {2, 6, 30}};
// 300 and 15 tokens, where chunks are not the point.
const std::vector<wan::LatentSize> kTwoChunks = {{2, 20, 30}, {1, 6, 10}};

class PlanInvariance : public ::testing::Test {
 protected:
  Results run(const TinyJob& job, const TinyCheckpoint& checkpoint) const {
    return TinyDit(config_, checkpoint.path(), tiny_batch(latents_, config_.text_len), job).run();
  }
  Results run(const TinyJob& job) const { return run(job, f32_); }

  // Every job, in every mode, against the resident one of that mode.
  void expect_same(std::vector<MemoryPolicy> policies, TinyJob job, const TinyCheckpoint& file) {
    for (const Mode mode : kModes) {
      job.mode = mode;
      job.update = mode != Mode::infer && job.update;
      job.policy = {};
      const Results resident = run(job, file);
      for (const MemoryPolicy& policy : policies) {
        job.policy = policy;
        EXPECT_EQ(difference(resident, run(job, file)), "") << name_of(mode) << " " << policy.name;
      }
    }
  }
  void expect_same(std::vector<MemoryPolicy> policies, const TinyJob& job = {}) {
    expect_same(std::move(policies), job, f32_);
  }

  wan::Config config_ = tiny_config();
  TinyCheckpoint f32_{config_};
  std::vector<wan::LatentSize> latents_ = kTwoChunks;
};

TEST_F(PlanInvariance, ResultsAreAllThereAndNotTrivial) {
  const Results full = run({.mode = Mode::full});
  EXPECT_EQ(full.size(), 3u * 2 + 1 + 15 + 27u * 3);  // samples, loss, weights
  const Results lora = run({.mode = Mode::lora});
  EXPECT_EQ(lora.size(), 2u + 1 + 3u * 10 * 4);  // outputs, loss, factors and their gradients
  for (const Results& all : {full, lora}) {
    for (const auto& [name, bytes] : all) {
      EXPECT_NE(bytes, std::vector<std::byte>(bytes.size())) << name;
    }
  }
}

TEST_F(PlanInvariance, StreamingGivesTheSameBitsAsResident) {
  std::vector<MemoryPolicy> policies;
  for (const StreamSource stream_from : {StreamSource::disk, StreamSource::host}) {
    for (const int slots : {1, 2, 4}) {
      for (const int resident : {0, 2}) {
        policies.push_back(
            {.name = fmt::format("{} slots from {}, {} groups stay", slots,
                                 stream_from == StreamSource::disk ? "disk" : "host", resident),
             .streaming = Streaming{
                 .slots = slots, .resident_groups = resident, .stream_from = stream_from}});
      }
    }
  }
  for (const int parts : {0, 1}) {
    policies.push_back({.name = fmt::format("two of four from host, {} parts", parts),
                        .streaming = Streaming{.slots = 1,
                                               .matrices_ahead = parts,
                                               .resident_groups = 1,
                                               .host_groups = 2,
                                               .extra_ring_buffers = 7}});
  }
  expect_same(std::move(policies));
}

TEST_F(PlanInvariance, WhatIsKeptForBackwardChangesNoBit) {
  std::vector<MemoryPolicy> policies;
  for (const Activations kept :
       {Activations::kept, Activations::attention_kept, Activations::recomputed}) {
    for (const int blocks : {0, 1}) {
      for (const bool offload : {false, true}) {
        policies.push_back({.name = fmt::format("{}, {} blocks kept{}", name_of(kept), blocks,
                                                offload ? ", offloaded" : ""),
                            .activations = kept,
                            .kept_blocks = blocks,
                            .offload = offload});
      }
    }
  }
  expect_same(std::move(policies));
}

TEST_F(PlanInvariance, PartsAndHalvesChangeNoBit) {
  std::vector<MemoryPolicy> policies;
  for (const Activations kept :
       {Activations::kept, Activations::attention_kept, Activations::recomputed}) {
    policies.push_back({.name = fmt::format("{}, halves", name_of(kept)),
                        .activations = kept,
                        .kept_blocks = 1,
                        .split_backward = true,
                        .offload = true});
    for (const StreamSource stream_from : {StreamSource::disk, StreamSource::host}) {
      policies.push_back(
          {.name = fmt::format("{}, parts from {}", name_of(kept),
                               stream_from == StreamSource::disk ? "disk" : "host"),
           .streaming = Streaming{.slots = 1,
                                  .matrices_ahead = stream_from == StreamSource::disk ? 1 : 3,
                                  .resident_groups = stream_from == StreamSource::disk ? 0 : 2,
                                  .stream_from = stream_from},
           .activations = kept,
           .split_backward = stream_from == StreamSource::disk});
    }
  }
  expect_same(std::move(policies));
}

TEST_F(PlanInvariance, ChunksAndHeadGroupsChangeNoBit) {
  latents_ = kThreeChunks;
  std::vector<MemoryPolicy> policies = {{.name = "one head", .heads_per_group = 1},
                                        {.name = "one head, recomputed",
                                         .activations = Activations::recomputed,
                                         .heads_per_group = 1}};
  for (const Activations kept :
       {Activations::kept, Activations::attention_kept, Activations::recomputed}) {
    for (const std::int64_t tokens : {256, 512}) {
      policies.push_back({.name = fmt::format("{}, chunks of {}", name_of(kept), tokens),
                          .activations = kept,
                          .chunk_tokens = tokens});
    }
  }
  expect_same(std::move(policies));
}

MemoryPolicy everything() {
  return {.name = "everything at once",
          .streaming = Streaming{.slots = 1},
          .activations = Activations::recomputed,
          .offload = true,
          .chunk_tokens = 256,
          .heads_per_group = 1};
}

MemoryPolicy everything_in_parts() {
  MemoryPolicy p = everything();
  p.name = "everything in parts";
  p.streaming->matrices_ahead = 1;
  p.split_backward = true;
  return p;
}

// The update too, and the step after it: in Mode::full what streams is changed in host memory.
TEST_F(PlanInvariance, CombinationsGiveTheSameBitsThroughAnUpdate) {
  latents_ = kThreeChunks;
  expect_same(
      {everything(),
       everything_in_parts(),
       {.name = "two slots, half of all kept",
        .streaming = Streaming{.slots = 2, .resident_groups = 1, .stream_from = StreamSource::host},
        .activations = Activations::attention_kept,
        .kept_blocks = 1,
        .offload = true,
        .chunk_tokens = 512},
       {.name = "state of three groups on disk",
        .streaming = Streaming{.slots = 1, .resident_groups = 2, .stream_from = StreamSource::host},
        .disk_state_groups = 3}},
      {.update = true});
}

TEST_F(PlanInvariance, ThreadCountChangesNoBit) {
  latents_ = kThreeChunks;
  for (const Mode mode : kModes) {
    for (const MemoryPolicy& policy : {MemoryPolicy(), everything()}) {
      const Results one = run({.mode = mode, .policy = policy, .threads = 1});
      for (const int threads : {2, 3}) {
        EXPECT_EQ(difference(one, run({.mode = mode, .policy = policy, .threads = threads})), "")
            << name_of(mode) << " " << policy.name << ", " << threads << " threads";
      }
    }
  }
}

TEST_F(PlanInvariance, DirectAndBufferedReadsGiveTheSameBits) {
  if (DiskFile::open(f32_.path()).mode() != DiskMode::direct) {
    GTEST_SKIP() << "this file system has no direct reads";
  }
  const MemoryPolicy stream = *find_policy("stream2");
  const Results buffered = run({.policy = stream, .disk = DiskMode::buffered});
  EXPECT_EQ(difference(buffered, run({.policy = stream, .disk = DiskMode::direct})), "");
}

TEST_F(PlanInvariance, EveryWeightFormatStreamsWithTheSameBits) {
  const std::vector<MemoryPolicy> policies = {
      *find_policy("stream1"),
      {.name = "from host",
       .streaming = Streaming{.slots = 2, .stream_from = StreamSource::host},
       .activations = Activations::recomputed}};
  const TinyCheckpoint bf16(config_, DType::bf16), f8(config_, DType::f8_e4m3);
  expect_same(policies, {}, bf16);
  expect_same(policies, {}, f8);
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::f8_e4m3,
                                    WeightFormat::f8_e4m3_rows, WeightFormat::int8_rows}) {
    SCOPED_TRACE(name_of(format));
    expect_same(policies, {.format = format});
  }
}

TEST_F(PlanInvariance, WeightFormatsDiffer) {  // else the test above says little
  const TinyCheckpoint f8(config_, DType::f8_e4m3);
  const Results f32 = run({});
  EXPECT_NE(difference(f32, run({}, f8)), "");
  for (const WeightFormat format :
       {WeightFormat::bf16, WeightFormat::f8_e4m3, WeightFormat::int8_rows}) {
    // On a GPU weights are bf16 when they meet bf16 activations.
    if (format == WeightFormat::bf16 && test_device() == Device::cuda) continue;
    EXPECT_NE(difference(f32, run({.format = format})), "") << name_of(format);
  }
}

TEST_F(PlanInvariance, NarrowActivationsKeepTheRule) {
  const std::vector<MemoryPolicy> policies = {*find_policy("stream2"), *find_policy("offload"),
                                              *find_policy("recompute"), *find_policy("chunked"),
                                              everything()};
  // Adapters stand in the row padding of weights of the activations' type.
  for (const WeightFormat format : {WeightFormat::stored, WeightFormat::bf16}) {
    expect_same(policies, {.precision = {.activation = DType::bf16, .residual = DType::f32},
                           .format = format});
  }
  expect_same(policies, {.precision = {.activation = DType::bf16, .residual = DType::bf16},
                         .format = WeightFormat::bf16});
}

// ---------------------------------------------------------------- orders

class LaneOrders : public ::testing::Test {
 protected:
  static wan::Config small() {
    wan::Config c = tiny_config();
    c.dim = 16, c.ffn_dim = 24, c.text_len = 4, c.text_dim = 8;
    return c;
  }
  Results run(const TinyJob& job) const {
    return TinyDit(config_, file_.path(), tiny_batch({{2, 4, 6}, {1, 4, 4}}, 4), job).run();
  }
  TinyJob job(std::uint32_t seed) const {
    return {
        .mode = seed % 2 == 0 ? Mode::lora : Mode::full,
        .policy = {.name = "streamed and offloaded",
                   .streaming = Streaming{.slots = 2},
                   .activations = Activations::attention_kept,
                   .offload = true},
        .threads = 1,
        .debug = {.order = Order::random, .random_seed = seed, .poison = true, .check_nan = true}};
  }

  wan::Config config_ = small();
  TinyCheckpoint file_{config_};
};

TEST_F(LaneOrders, AnyLegalOrderGivesTheSameBits) {
  const Results expected[] = {run({.mode = Mode::lora}), run({.mode = Mode::full})};
  // On a GPU every instruction is waited for here: an order takes more than a second.
  const std::uint32_t orders = support::test_device() == Device::cpu ? 200 : 30;
  for (std::uint32_t seed = 0; seed < orders; ++seed) {
    EXPECT_EQ(difference(expected[seed % 2], run(job(seed))), "") << "seed " << seed;
  }
}

TEST_F(LaneOrders, AnyLegalOrderOfAnUpdateFromDiskGivesTheSameBits) {
  // Resident state is updated in groups, state on disk tensor by tensor.
  const Results expected[] = {run({.mode = Mode::lora, .update = true}),
                              run({.mode = Mode::full, .update = true})};
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    TinyJob from_disk = job(seed);
    from_disk.policy = *find_policy("state-on-disk");
    from_disk.policy.streaming->resident_groups = 1;
    from_disk.update = true;
    EXPECT_EQ(difference(expected[seed % 2], run(from_disk)), "") << "seed " << seed;
  }
}

TEST_F(LaneOrders, RecordedOrderUnderWatchGivesTheSameBits) {
  for (const std::uint32_t mode : {0u, 1u}) {
    TinyJob watched = job(mode);
    watched.debug.order = Order::recorded;
    watched.debug.check_guards = true;
    watched.plan.guard_bytes = 64;
    watched.policy.disk_state_groups = kAllGroups;
    EXPECT_EQ(difference(run({.mode = watched.mode}), run(watched)), "");
  }
}

// The test above can fail: without the waits its orders do.
TEST_F(LaneOrders, WithoutWaitsResultsGoWrong) {
  const Results expected[] = {run({.mode = Mode::lora}), run({.mode = Mode::full})};
  int wrong = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    TinyJob unwaited = job(seed);
    unwaited.debug.ignore_waits = true;
    try {
      wrong += difference(expected[seed % 2], run(unwaited)).empty() ? 0 : 1;
    } catch (const Error&) {
      ++wrong;  // a NaN was found
    }
  }
  EXPECT_GT(wrong, 0);
}

}  // namespace
}  // namespace ballast::support::plan_invariance_test
