#include "fit/fit.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/to_size.h"
#include "fit/advice.h"
#include "fit/fill.h"
#include "fit/tuning.h"
#include "models/wan/fit_job.h"
#include "models/wan/weights.h"
#include "ops/kernels/token_quantum.h"
#include "plan/recording_cost.h"

namespace ballast::wan {
namespace {

struct Case {
  Mode mode;
  const char* machine;
  Bytes gpu, ram;
};

fit::Request request(const Case& c, const LatentSize& size) {
  fit::Request r = {.job = FitJob()};
  r.profile = *find_profile(c.machine);
  r.backend = {.device = Device::cuda, .threads = 1, .sm = r.profile.sm};
  r.budget = {.gpu = c.gpu, .host = c.ram, .disk = {}};
  job_of(r).dit.config = *find_preset("wan2.2-t2v-a14b");
  job_of(r).dit.mode = c.mode;
  job_of(r).dit.precision = precision_on(Device::cuda);
  job_of(r).dit.noising = c.mode == Mode::infer ? Noising::given : Noising::recorded;
  job_of(r).dit.record_update = c.mode != Mode::infer;
  job_of(r).dit.max_grad_norm = 1;
  job_of(r).dit.batches = {{.latents = {size}, .timestep_rows = 1}};
  job_of(r).experts = {planned_groups(job_of(r).dit.config, DType::bf16)};
  return r;
}

fit::PlannedRun fitted(const fit::Request& r) {
  return std::get<fit::PlannedRun>(fit::find_plan(r));
}  // or it throws

// A plan of a 14B model is to take less than a second; work is counted here, as time depends on who
// else is there. A recording of the whole model has 45,000 to 90,000 instructions,
// most where weights come from disk, in pieces of 4 MiB (decision 50).
TEST(Fit, RecordsFewInstructionsForAnAnswer) {
  const LatentSize small = {.frames = 7, .height = 64, .width = 64};
  const LatentSize large = {.frames = 21, .height = 60, .width = 104};
  const auto recorded_for = [](const Case& c, const LatentSize& size) {
    const std::uint64_t before = recorded_instructions();
    EXPECT_TRUE(std::holds_alternative<fit::PlannedRun>(fit::find_plan(request(c, size))));
    return recorded_instructions() - before;
  };
  EXPECT_LE(recorded_for({Mode::lora, "rtx4090", 24_GB, 32_GB}, large), 310'000u);
  // The disk decides what this one takes: it is recorded once more with attention computed again.
  // Policies differ by little there, so that three are, and it is worth a block to have a larger
  // ring.
  EXPECT_LE(recorded_for({Mode::lora, "rtx4090", 8_GB, 8_GB}, small), 630'000u);
  // The disk decides what its steps take: one that will hardly fit is not recorded whole first.
  EXPECT_LE(recorded_for({Mode::lora, "h200", 3_GB, 6_GB}, small), 440'000u);
  // Their steps wait for nothing, so that larger pieces of work are looked for, and neighbours.
  EXPECT_LE(recorded_for({Mode::full, "h200", 139_GB, 400_GB}, large), 490'000u);
  EXPECT_LE(recorded_for({Mode::full, "rtx4090", 24_GB, 256_GB}, small), 445'000u);
}

// The runner then reads them beside the pinning of memory: no kernel reaches for it.
TEST(Fit, WeightsOfTheDevicesOwnTypeAreLoadedByCopiesOfBytes) {
  fit::Request r =
      request({Mode::lora, "h200", 3_GB, 6_GB}, {.frames = 1, .height = 32, .width = 32});
  const auto kernels = [&](const MemoryPolicy& policy) {
    const fit::Recording recorded = fit::record(r, policy);
    const auto load = to_size(recorded.set.program_index("load"));
    return std::ranges::count_if(
        recorded.set.programs[load].instructions,
        [](const Instruction& i) { return i.lane == Lane::upload && !i.copies_bytes; });
  };
  fit::NeedsCache known;
  EXPECT_EQ(kernels(fit::closest_policy(r, known)), 0);
  EXPECT_EQ(kernels({}), 0);  // everything stays
  job_of(r).experts = {planned_groups(job_of(r).dit.config, DType::f32)};
  job_of(r).dit.format = WeightFormat::bf16;
  EXPECT_GT(kernels({}), 0);
}

fit::Request distilled_request(Bytes gpu, Bytes ram) {
  fit::Request r =
      request({Mode::full, "rtx4090", gpu, ram}, {.frames = 3, .height = 32, .width = 32});
  job_of(r).dit.config = *find_preset("wan2.1-t2v-1.3b");
  job_of(r).teacher = TeacherJob{.config = job_of(r).dit.config,
                                 .precision = job_of(r).dit.precision,
                                 .experts = {planned_groups(job_of(r).dit.config, DType::bf16)}};
  job_of(r).dit.config.layers = 10;
  job_of(r).experts = {planned_groups(job_of(r).dit.config, DType::bf16)};
  return r;
}

TEST(Fit, AsManyGroupsOfATeacherStayAsFit) {
  fit::Request r = distilled_request(Bytes{2'010'000'000}, 24_GB);
  const std::uint64_t before = recorded_instructions();
  const auto outcome = fit::find_plan(r);
  // Most numbers of groups are tried by one lean recording each.
  EXPECT_LE(recorded_instructions() - before, 470'000u);
  const auto* run = std::get_if<fit::PlannedRun>(&outcome);
  ASSERT_TRUE(run);
  job_of(r).teacher->policy = run->job.as<FitJob>().teacher->policy;
  int& groups = job_of(r).teacher->policy->streaming->resident_groups;
  EXPECT_GT(groups, 0);
  EXPECT_LT(groups, group_count(job_of(r).teacher->config) - 1);
  const auto again = fit::find_plan(r);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(again));
  EXPECT_EQ(std::get<fit::PlannedRun>(again).policy, run->policy);
  EXPECT_EQ(std::get<fit::PlannedRun>(again).seconds_per_step(), run->seconds_per_step());
  ++groups;
  EXPECT_TRUE(std::holds_alternative<Refusal>(fit::find_plan(r)));
}

// It is about the leanest place; why the others are not enough nobody reads.
TEST(Fit, RecordsFewInstructionsWhereATeacherHasNoPlace) {
  fit::Request r = distilled_request(Bytes{500'000'000}, 4_GB);
  const std::uint64_t before = recorded_instructions();
  const auto outcome = fit::find_plan(r);
  EXPECT_LE(recorded_instructions() - before, 170'000u);
  const auto* refusal = std::get_if<Refusal>(&outcome);
  ASSERT_TRUE(refusal);
  job_of(r).teacher->policy = teacher_policies().back();
  const auto leanest = fit::find_plan(r);
  EXPECT_EQ(refusal->needed, std::get<Refusal>(leanest).needed);
  EXPECT_EQ(refusal->seconds_per_step, std::get<Refusal>(leanest).seconds_per_step);
}

// Gradients of whole weights are added up in large quanta: no policy cuts them.
TEST(Fit, CutsTheWorkOfFullTrainingAtWholeQuanta) {
  const LatentSize size = {.frames = 21, .height = 60, .width = 104};  // 32,760 tokens
  fit::Request r = request({Mode::full, "h200", 40_GB, 400_GB}, size);
  job_of(r).dit.config = *find_preset("wan2.1-t2v-1.3b");
  job_of(r).experts = {planned_groups(job_of(r).dit.config, DType::bf16)};
  const auto expect_whole = [](const std::vector<MemoryPolicy>& all) {
    for (const MemoryPolicy& p : all) EXPECT_EQ(p.chunk_tokens % kWideQuantum, 0) << p.name;
  };
  for (const auto& list : job_of(r).candidates({})) expect_whole(list);
  expect_whole(job_of(r).leanest());
  expect_whole(job_of(r).last_resort(false));
  EXPECT_GT(job_of(r).leanest().front().chunk_tokens, 0);
  MemoryPolicy p = {.activations = Activations::recomputed, .chunk_tokens = kWideQuantum};
  EXPECT_GT(fit::needs_lower_bound(r, p).device, Bytes{0});
  p.chunk_tokens = 2 * kTokenQuantum;
  try {
    fit::needs_lower_bound(r, p);
    FAIL() << "cut within a quantum";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
  }
  r.policy = find_policy("chunked");
  r.budget.gpu = 139_GB;
  const auto planned = fit::find_plan(r);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(planned));
  EXPECT_EQ(std::get<fit::PlannedRun>(planned).policy.chunk_tokens, kWideQuantum);
  job_of(r).dit.mode = Mode::lora;
  EXPECT_GT(fit::needs_lower_bound(r, p).device, Bytes{0});
}

// Host memory holds what attention left as well, in the place of four blocks: where a step waits
// for the disk it is faster to compute that again.
TEST(Fit, WhatAttentionLeftGivesItsPlaceToWeightsWhereTheDiskDecides) {
  const LatentSize size = {.frames = 7, .height = 64, .width = 64};
  const fit::Request r = request({Mode::lora, "rtx4090", 4_GB, 8_GB}, size);
  const fit::PlannedRun run = fitted(r);
  EXPECT_EQ(run.policy.activations, Activations::recomputed);
  EXPECT_GE(fit::blocks_from_host(*r.job, run.policy), 4);
  EXPECT_LE(run.needed(Tier::host), 8_GB);
  MemoryPolicy kept = run.policy;
  kept.activations = Activations::attention_kept;
  EXPECT_GT(fit::plan_run(r, kept).needed(Tier::host), 8_GB);
  kept.streaming->host_groups = 0;
  const fit::PlannedRun from_disk = fit::plan_run(r, kept);
  EXPECT_LE(from_disk.needed(Tier::host), 8_GB);
  EXPECT_LT(run.seconds_per_step(), 0.97 * from_disk.seconds_per_step());
}

// Of the disk's two visits a step, each costs more than all that a block computes.
TEST(Fit, HostMemoryThatIsLeftHoldsWhatWouldComeFromDisk) {
  const LatentSize size = {.frames = 7, .height = 64, .width = 64};
  const fit::Request r = request({Mode::lora, "rtx4090", 8_GB, 16_GB}, size);
  const fit::PlannedRun run = fitted(r);
  EXPECT_EQ(run.policy.stream().stream_from, StreamSource::disk);
  EXPECT_GT(fit::blocks_from_host(*r.job, run.policy), 8);
  EXPECT_LT(fit::blocks_from_host(*r.job, run.policy), fit::streamed_blocks(*r.job, run.policy));
  EXPECT_LE(run.needed(Tier::host), 16_GB);
  EXPECT_GT(run.needed(Tier::host), 15_GB);
  MemoryPolicy from_disk = run.policy;
  from_disk.streaming->host_groups = 0;
  EXPECT_LT(run.seconds_per_step(), 0.8 * fit::plan_run(r, from_disk).seconds_per_step());
}

// While blocks from host memory are computed with, the disk reads on into what no block has room
// in.
TEST(Fit, TheRingTakesWhatNoBlockHasRoomIn) {
  const LatentSize size = {.frames = 7, .height = 64, .width = 64};
  for (const Case& c :
       {Case{Mode::lora, "rtx4090", 8_GB, 16_GB}, Case{Mode::lora, "h200", 4_GB, 24_GB}}) {
    const fit::Request r = request(c, size);
    const fit::PlannedRun run = fitted(r);
    EXPECT_GT(run.policy.stream().extra_ring_buffers, 50);
    EXPECT_LE(run.needed(Tier::host), c.ram);
    MemoryPolicy small_ring = run.policy;
    small_ring.streaming->extra_ring_buffers = 0;
    EXPECT_LT(run.seconds_per_step(), 0.93 * fit::plan_run(r, small_ring).seconds_per_step());
  }
  // Where the disk is never idle it would be for nothing, and where it seldom is, reads into much
  // memory take longer by more than it saves.
  for (const Case& c : {Case{Mode::infer, "h200", 4_GB, 1_GB}, Case{Mode::lora, "h200", 3_GB, 6_GB},
                        Case{Mode::lora, "rtx4090", 8_GB, 8_GB}}) {
    EXPECT_EQ(fitted(request(c, size)).policy.stream().extra_ring_buffers, 0)
        << c.machine << " " << c.gpu.count;
  }
}

TEST(Fit, ReadsIntoALargeRingTakeLonger) {
  const fit::Request r =
      request({Mode::lora, "h200", 4_GB, 24_GB}, {.frames = 1, .height = 32, .width = 32});
  const auto reads = [&](int extra_ring_buffers) {
    const fit::PlannedRun run = fit::plan_run(
        r, {.streaming = Streaming{.slots = 1, .extra_ring_buffers = extra_ring_buffers}});
    return run.main_program().busy[to_size(Lane::disk)];
  };
  EXPECT_NEAR(reads(8), reads(0) / fit::tuning::kIntoALargeRing, 0.01 * reads(0));
}

// A second search asks what the first has found out, for a disk that reads faster.
TEST(Fit, WhatAPolicyNeedsIsKnownForEveryRateOfTheDisk) {
  const fit::Request r =
      request({Mode::lora, "h200", 4_GB, 24_GB}, {.frames = 1, .height = 32, .width = 32});
  fit::Request faster = r;
  faster.profile.disk_bandwidth *= 4;
  const MemoryPolicy policy = {.streaming = Streaming{.slots = 1},
                               .activations = Activations::recomputed};
  fit::NeedsCache known;
  const double slow = fit::seconds_lower_bound(known.needs_for(r, policy), r.profile);
  const double fast = fit::seconds_lower_bound(known.needs_for(faster, policy), faster.profile);
  EXPECT_LT(fast, 0.3 * slow);
  EXPECT_NEAR(fast,
              fit::seconds_lower_bound(fit::needs_lower_bound(faster, policy), faster.profile),
              1e-6 * fast);
}

// The GPU's map of so much pinned memory has its place, if need be that of a block: host memory is
// not left empty where blocks fill the GPU's to the last megabyte.
TEST(Fit, ABlockOnTheGpuGivesItsPlaceToTheMapOfHostMemory) {
  const LatentSize size = {.frames = 7, .height = 64, .width = 64};
  double before = 0;
  for (const Case& c :
       {Case{Mode::lora, "h200", Bytes{7'500'000'000}, 24_GB},
        Case{Mode::lora, "h200", 8_GB, 24_GB}, Case{Mode::lora, "h200", 8_GB, 26_GB},
        Case{Mode::lora, "h200", 8_GB, Bytes{26'500'000'000}},
        Case{Mode::lora, "h200", 8_GB, 28_GB}}) {
    const fit::PlannedRun run = fitted(request(c, size));
    EXPECT_GT(run.needed(Tier::host), c.ram - 1_GB) << c.gpu.count << " " << c.ram.count;
    if (before > 0) {
      EXPECT_LE(run.seconds_per_step(), 1.01 * before) << c.gpu.count << " " << c.ram.count;
    }
    before = run.seconds_per_step();
  }
}

// What a block takes in host memory is known in every format, and more memory is never for nothing.
TEST(Fit, HostMemoryIsFilledInEveryFormat) {
  const LatentSize size = {.frames = 7, .height = 64, .width = 64};
  double before = 0;
  for (const Bytes ram : {Bytes{14'900'000'000}, 15_GB, Bytes{15'500'000'000}}) {
    fit::Request r = request({Mode::lora, "rtx4090", 8_GB, ram}, size);
    const double stored = fitted(r).seconds_per_step();
    if (before > 0) {
      EXPECT_LE(stored, 1.01 * before) << ram.count;
    }
    before = stored;
    job_of(r).dit.format = WeightFormat::bf16;  // as the file has them
    EXPECT_NEAR(fitted(r).seconds_per_step(), stored, 0.01 * stored) << ram.count;
  }
  // The embeddings, which keep their precision, are larger than a block then.
  fit::Request r = request({Mode::lora, "h200", 4_GB, 12_GB}, size);
  job_of(r).dit.format = WeightFormat::f8_e4m3;
  EXPECT_GT(fitted(r).needed(Tier::host), Bytes{11'500'000'000});
}

// What is passed over without recording anything needs no less in truth.
TEST(Fit, KeepsNoLessThanIsKnownBeforehand) {
  const LatentSize size = {.frames = 3, .height = 32, .width = 32};
  fit::Request r = request({Mode::lora, "rtx4090", 24_GB, 32_GB}, size);
  job_of(r).dit.batches = {
      {.latents = {size, {.frames = 1, .height = 64, .width = 32}, size}, .timestep_rows = 3}};
  for (const Mode mode : {Mode::lora, Mode::full}) {
    job_of(r).dit.mode = mode;
    for (const Activations a :
         {Activations::kept, Activations::attention_kept, Activations::recomputed}) {
      for (const bool offload : {false, true}) {
        for (const std::int64_t samples : {0, 1, 2}) {
          const MemoryPolicy p = {
              .streaming = Streaming{.slots = 1, .stream_from = StreamSource::host},
              .activations = a,
              .offload = offload,
              .samples_per_pass = samples};
          const fit::NeedsLowerBound known = fit::min_kept_bytes(r, p),
                                     needs = fit::needs_lower_bound(r, p);
          EXPECT_GT(offload ? known.host : known.device, Bytes{300'000'000});
          EXPECT_LE(known.device, needs.device);
          EXPECT_LE(known.host, needs.host);
        }
      }
    }
  }
}

// What few blocks show of groups that stay is no more than they need in truth, and not much less.
TEST(Fit, NeedsNoLessThanFewBlocksShowOfGroupsThatStay) {
  fit::Request r =
      request({Mode::lora, "rtx4090", 24_GB, 32_GB}, {.frames = 3, .height = 32, .width = 32});
  job_of(r).dit.config.layers = 9;
  job_of(r).experts = {planned_groups(job_of(r).dit.config, DType::bf16)};
  fit::NeedsCache known;
  for (const auto& [slots, matrices_ahead] : {std::pair(1, 0), std::pair(2, 0), std::pair(1, 3)}) {
    for (const StreamSource stream_from : {StreamSource::disk, StreamSource::host}) {
      for (const Activations a : {Activations::kept, Activations::recomputed}) {
        for (const bool offload : {false, true}) {
          for (const int resident : {1, 4, 9}) {
            const MemoryPolicy p = {.streaming = Streaming{.slots = slots,
                                                           .matrices_ahead = matrices_ahead,
                                                           .resident_groups = resident,
                                                           .stream_from = stream_from},
                                    .activations = a,
                                    .offload = offload,
                                    .chunk_tokens = offload ? 256 : 0};
            const auto least = known.needs_resident(r, p);
            ASSERT_TRUE(least.has_value());
            const fit::NeedsLowerBound needs = fit::needs_lower_bound(r, fit::record(r, p));
            EXPECT_LE(least->device, needs.device);
            EXPECT_LE(least->host, needs.host);
            const auto quick = known.needs_resident(r, p, true);
            EXPECT_LE(quick->device, least->device);
            EXPECT_LE(quick->host, least->host);
            // Matrices that come one by one may be those of a block that stays.
            const double block = matrices_ahead > 0 ? 0.71e9 : 0;
            EXPECT_GE(static_cast<double>(least->device.count) + block,
                      0.97 * static_cast<double>(needs.device.count));
            EXPECT_GE(static_cast<double>(least->host.count),
                      0.85 * static_cast<double>(needs.host.count));
          }
        }
      }
    }
  }
  EXPECT_FALSE(known.needs_resident(r, {}).has_value());
  EXPECT_FALSE(known.needs_resident(r, {.streaming = Streaming{.slots = 1, .resident_groups = 10}})
                   .has_value());
}

// The same activations with all weights resident, however much memory that takes.
double resident_seconds(const fit::Request& r, std::int64_t heads) {
  return fit::plan_run(r, {.activations = Activations::attention_kept, .heads_per_group = heads})
      .seconds_per_step();
}

TEST(Fit, TakesTheLargestPiecesOfWorkThatFit) {
  const LatentSize small = {.frames = 7, .height = 64, .width = 64};
  const LatentSize large = {.frames = 21, .height = 60, .width = 104};
  const auto planned = [](const fit::Request& r) {
    return std::get<fit::PlannedRun>(fit::find_plan(r));
  };
  // Half of the blocks stream beside steps that compute as large pieces as the resident ones.
  fit::Request r = request({Mode::lora, "h200", 24_GB, 64_GB}, small);
  EXPECT_LE(planned(r).seconds_per_step(), 1.03 * resident_seconds(r, 0));
  r = request({Mode::lora, "h200", Bytes{6'500'000'000}, 60_GB}, large);
  r.backend.deterministic = false;
  EXPECT_LE(planned(r).seconds_per_step(), 1.10 * resident_seconds(r, 8));
  // With determinism a head's gradients take 2.15 GB of workspace. They come to the places of its
  // queries, keys and values, and what else is alive beside it fits together without gaps.
  r = request({Mode::lora, "h200", Bytes{5'800'000'000}, 60_GB}, large);
  EXPECT_EQ(planned(r).policy.stream().stream_from, StreamSource::host);
  EXPECT_LE(planned(r).seconds_per_step(), 1.15 * resident_seconds(r, 8));
  // Chunks would not make this one smaller: its peak is in attention.
  r = request({Mode::infer, "h200", 4_GB, 64_GB}, large);
  job_of(r).dit.batches[0] = {.latents = {large, large}, .timestep_rows = 2};
  const fit::PlannedRun pair = planned(r);
  EXPECT_EQ(pair.policy.chunk_tokens, 0);
  EXPECT_LE(pair.seconds_per_step(), 1.01 * resident_seconds(r, 0));
}

// A step begins with the groups that the one before ended with, so that its first product waits for
// no weights, and the forward pass brings two blocks less.
TEST(Streaming, ACopyIsOnlyWaitedForWhereTheLinkIsTooSlow) {
  const LatentSize small = {.frames = 7, .height = 64, .width = 64};
  fit::Request r = request({Mode::infer, "h200", {}, {}}, small);
  job_of(r).dit.batches[0] = {.latents = {small, small}, .timestep_rows = 2};
  const MemoryPolicy streamed = {.streaming =
                                     Streaming{.slots = 2, .stream_from = StreamSource::host}};
  const PredictedTime pair = fit::plan_run(r, streamed).main_program();
  EXPECT_LT(pair.exposed_stall, 1e-3);
  EXPECT_LE(pair.seconds, 1.01 * pair.busy[to_size(Lane::compute)]);
  // A forward pass of one sample takes less time than its weights, and nothing is lost beside it: a
  // step waits for no more than such a pass alone.
  const MemoryPolicy p = {
      .streaming = Streaming{.slots = 2, .resident_groups = 5, .stream_from = StreamSource::host},
      .activations = Activations::attention_kept};
  r = request({Mode::infer, "h200", {}, {}}, small);
  const PredictedTime forward = fit::plan_run(r, p).main_program();
  r = request({Mode::lora, "h200", {}, {}}, small);
  const PredictedTime lora = fit::plan_run(r, p).main_program();
  EXPECT_LE(lora.exposed_stall, forward.exposed_stall);
  EXPECT_LE(lora.seconds, 1.001 * (lora.busy[to_size(Lane::compute)] + forward.exposed_stall));
}

// A block's gradients go to the host while the next block computes, whose own take their places.
TEST(Streaming, GradientsLeaveBesideTheNextBlock) {
  fit::Request r =
      request({Mode::full, "h200", {}, {}}, {.frames = 21, .height = 60, .width = 104});
  job_of(r).dit.config.layers = 6;
  job_of(r).experts = {planned_groups(job_of(r).dit.config, DType::bf16)};
  const MemoryPolicy p = {.streaming = Streaming{.slots = 2, .stream_from = StreamSource::host},
                          .activations = Activations::attention_kept,
                          .heads_per_group = 8};
  const fit::PlannedRun run = fit::plan_run(r, p);
  const PredictedTime& step = run.main_program();
  const double leaving = step.busy[to_size(Lane::download)];
  EXPECT_GT(leaving, 0.1);  // 8.4 GB
  EXPECT_LT(step.exposed_stall, 0.15 * leaving);
}

// Twelve blocks of the 14B model: 26 GB of weights and gradients, 53 GB of moments and masters.
class StateOnDisk : public ::testing::Test {
 protected:
  StateOnDisk() {
    job_of(request_).dit.config.layers = 12;
    job_of(request_).experts = {planned_groups(job_of(request_).dit.config, DType::bf16)};
  }
  fit::Outcome with_disk(Bytes disk) {
    request_.budget.disk = disk;
    return fit::find_plan(request_);
  }

  fit::Request request_ =
      request({Mode::full, "rtx4090", 16_GB, 32_GB}, {.frames = 1, .height = 32, .width = 32});
};

TEST_F(StateOnDisk, IsUsedWhereMemoryIsTooSmallAndForNoMoreThanItTakes) {
  ASSERT_TRUE(std::holds_alternative<Refusal>(with_disk({})));
  const auto outcome = with_disk(200_GB);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(outcome));
  const auto& run = std::get<fit::PlannedRun>(outcome);
  const Bytes used = run.needed(Tier::disk);
  EXPECT_TRUE(fit::shortages(request_, run).empty());
  EXPECT_GT(run.policy.disk_state_groups, 0);
  EXPECT_LT(run.policy.disk_state_groups, group_count(job_of(request_).dit.config));
  // Reading and writing it is what the update takes.
  const auto update = to_size(run.set.program_index("update"));
  EXPECT_GE(run.times[update].seconds,
            2 * static_cast<double>(used.count) / request_.profile.disk_bandwidth);
  EXPECT_LE(run.times[update].seconds,
            2.3 * static_cast<double>(used.count) / request_.profile.disk_bandwidth);
  // A block's state takes 4 GB. Not one less would do, nor is any used where there is memory.
  EXPECT_TRUE(std::holds_alternative<fit::PlannedRun>(with_disk(used + 5_GB)));
  EXPECT_TRUE(std::holds_alternative<Refusal>(with_disk(used - 5_GB)));
  request_.budget.host = 100_GB;
  EXPECT_EQ(std::get<fit::PlannedRun>(with_disk(200_GB)).needed(Tier::disk), Bytes{});
}

TEST_F(StateOnDisk, IsAdvisedWithSpaceThatIsEnough) {
  const auto refused = std::get<Refusal>(with_disk({}));
  const auto change = state_on_disk(request_);
  ASSERT_TRUE(change.has_value());
  const std::vector<PlannedChange> planned = fit::try_changes(request_, refused, {*change});
  ASSERT_EQ(planned.size(), 1u);
  EXPECT_TRUE(planned[0].fits);
  EXPECT_GT(planned[0].frees_host, 20_GB);
  EXPECT_GT(planned[0].needed[2], 10_GB);
  change->apply(request_);
  EXPECT_TRUE(std::holds_alternative<fit::PlannedRun>(fit::find_plan(request_)));
  EXPECT_FALSE(state_on_disk(request_).has_value());
  job_of(request_).dit.mode = Mode::lora;
  request_.budget.disk = {};
  EXPECT_FALSE(state_on_disk(request_).has_value());
}

}  // namespace
}  // namespace ballast::wan
