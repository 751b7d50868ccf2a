// Plans of encoding and of writing texts inside budgets.

#include <gtest/gtest.h>

#include "fit/fit.h"
#include "models/t5/fit_job.h"
#include "models/t5/inference_fit_job.h"
#include "models/t5/weights.h"

namespace ballast::t5 {
namespace {

constexpr std::uint64_t kMb = 1'000'000;

fit::Request on_gpu(fit::AnyJob job, std::uint64_t gpu_mb, std::uint64_t ram_mb) {
  fit::Request r = {.job = std::move(job)};
  r.profile = *find_profile("rtx4090");
  r.backend = {.device = Device::cuda, .sm = r.profile.sm};
  r.budget = {.gpu = Bytes{gpu_mb * kMb}, .host = Bytes{ram_mb * kMb}, .disk = {}};
  return r;
}

EncoderFitJob encoding(std::vector<std::vector<std::int64_t>> passes) {
  EncoderFitJob job;
  job.encoder.config = *find_preset("umt5-xxl-encoder");
  job.encoder.precision = precision_on(Device::cuda);
  job.encoder.passes = std::move(passes);
  job.weights = planned_groups(job.encoder.config, DType::bf16);
  return job;
}

DecoderFitJob writing(std::int64_t beams, std::int64_t tokens) {
  DecoderFitJob job;
  job.decoder.config = *find_preset("t5-v1.1-xl");
  job.decoder.precision = precision_on(Device::cuda);
  job.decoder.beams = beams;
  job.decoder.positions = tokens;
  job.decoder.sources = {20, 300};
  job.weights = planned_groups(job.decoder.config, DType::bf16);
  return job;
}

fit::PlannedRun planned(const fit::Request& r) {
  auto outcome = fit::find_plan(r);
  EXPECT_TRUE(std::holds_alternative<fit::PlannedRun>(outcome));
  auto run = std::get<fit::PlannedRun>(std::move(outcome));
  EXPECT_LE(run.needed(Tier::device), r.budget.gpu);
  EXPECT_LE(run.needed(Tier::host), r.budget.host);
  return run;
}

MemoryPolicy from_disk(int slots, std::int64_t chunk = 0) {
  return {.name = "stream", .streaming = Streaming{.slots = slots}, .chunk_tokens = chunk};
}

TEST(T5InferenceFit, OnePassStreamsEverySingleBlock) {
  const fit::PlannedRun run = planned(on_gpu(encoding({{512, 30}}), 20'000, 32'000));
  EXPECT_EQ(run.policy, planned(on_gpu(encoding({{512, 30}}), 3'000, 3'000)).policy);
  EXPECT_EQ(run.policy.stream().slots, 3);
  EXPECT_EQ(run.policy.stream().resident_groups, 0);
  EXPECT_EQ(run.policy.stream().host_groups, 0);
}

TEST(T5InferenceFit, SeveralPassesKeepWhatFits) {
  const std::vector<std::vector<std::int64_t>> passes(3, {300, 300});
  EXPECT_EQ(planned(on_gpu(encoding(passes), 20'000, 32'000)).policy.name, "resident");
  const fit::Request r = on_gpu(encoding(passes), 8'000, 3'000);
  const fit::PlannedRun run = planned(r);
  EXPECT_GT(run.policy.stream().slots, 0);
  EXPECT_GT(run.policy.stream().resident_groups, 10)
      << weights_text(encoding({}).encoder.config, run.policy);
  EXPECT_LT(run.seconds_per_step(), 0.8 * fit::plan_run(r, from_disk(3)).seconds_per_step());
}

// Nothing is loaded ahead where reading takes no time that compute does not take anyway.
TEST(T5InferenceFit, SeveralPassesStreamWhereComputingDecides) {
  fit::Request r =
      on_gpu(encoding(std::vector<std::vector<std::int64_t>>(3, {300, 300})), 8'000, 3'000);
  r.profile.disk_bandwidth *= 1000;
  r.profile.upload_bandwidth *= 1000;
  EXPECT_EQ(planned(r).policy.stream().resident_groups, 0);
}

TEST(T5InferenceFit, TextsAreWrittenFromMemoryThatIsLeft) {
  const double from_disk_alone =
      fit::plan_run(on_gpu(writing(1, 64), 2'000, 3'000), from_disk(3)).seconds_per_step();
  const fit::PlannedRun some = planned(on_gpu(writing(1, 64), 2'000, 3'000));
  EXPECT_GT(some.policy.stream().resident_groups, 0);
  EXPECT_GT(some.policy.stream().host_groups, 0);
  EXPECT_LT(some.seconds_per_step(), 0.6 * from_disk_alone);
  const fit::PlannedRun ram = planned(on_gpu(writing(1, 64), 2'000, 16'000));
  EXPECT_EQ(ram.policy.stream().stream_from, StreamSource::host);
  EXPECT_LT(ram.seconds_per_step(), 0.2 * from_disk_alone);
  EXPECT_EQ(planned(on_gpu(writing(1, 64), 8'000, 16'000)).policy.name, "resident");
}

TEST(T5InferenceFit, TimeIsThatOfAWholeText) {
  const fit::PlannedRun run = planned(on_gpu(writing(4, 50), 8'000, 16'000));
  ASSERT_EQ(run.steps.size(), 2u);  // by length of the source
  EXPECT_NEAR(run.seconds_of_step(1),
              run.seconds_of("load") + run.seconds_of("read.1") + 50 * run.seconds_of("next.1") +
                  49 * run.seconds_of("reorder"),
              1e-9);
  EXPECT_GT(run.seconds_of("next.1"), 0);
  EXPECT_GT(run.seconds_of_step(1), run.seconds_of_step(0));
}

// By plain policies, that stay or stream from disk.
TEST(T5InferenceFit, IsNoSlowerThanPlainPoliciesAndRefusesNoneOfThem) {
  const std::vector<std::vector<std::int64_t>> passes(2, {300, 40});
  for (const bool encodes : {true, false}) {
    int plans = 0;
    for (const std::uint64_t gpu : {900, 1'500, 2'500, 6'000, 16'000}) {
      const fit::Request r =
          encodes ? on_gpu(encoding(passes), gpu, 2'500) : on_gpu(writing(2, 30), gpu, 2'500);
      std::optional<double> plain;
      for (const MemoryPolicy& p :
           {MemoryPolicy(), from_disk(3), from_disk(2), from_disk(1), from_disk(1, 256)}) {
        const fit::PlannedRun run = fit::plan_run(r, p);
        if (!fit::shortages(r, run).empty()) continue;
        plain = run.seconds_per_step();
        break;
      }
      if (!plain) continue;
      ++plans;
      EXPECT_LE(planned(r).seconds_per_step(), 1.0001 * *plain) << gpu << " MB";
    }
    EXPECT_GE(plans, 3);
  }
}

}  // namespace
}  // namespace ballast::t5
