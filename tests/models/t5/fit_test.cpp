// Plans of a training inside budgets: what stays, what streams, what is refused.

#include <gtest/gtest.h>

#include "fit/advice.h"
#include "models/t5/fit_job.h"
#include "models/t5/weights.h"
#include "tests/support/tiny_t5.h"

namespace ballast::t5 {
namespace {

constexpr std::uint64_t kGb = 1'000'000'000;

// FLAN-T5-XL's shapes on an H200, 8 samples of 512 and 256 tokens; no GPU is needed to plan it.
fit::Request xl() {
  fit::Request r = {.job = FitJob()};
  job_of(r).seq2seq.config = *find_preset("t5-v1.1-xl");
  job_of(r).seq2seq.precision = precision_on(Device::cuda);
  job_of(r).seq2seq.trains = job_of(r).seq2seq.record_update = true;
  job_of(r).seq2seq.batches = {{.samples = 8, .source = 512, .target = 256}};
  job_of(r).seq2seq.max_grad_norm = 1;
  job_of(r).weights = planned_groups(job_of(r).seq2seq.config, DType::bf16);
  r.profile = *find_profile("h200");
  r.backend = {.device = Device::cuda, .threads = 8, .sm = r.profile.sm};
  r.budget = {.gpu = r.profile.device_memory, .host = Bytes{100 * kGb}, .disk = Bytes{kGb}};
  return r;
}

TEST(T5Fit, KeepsEverythingOnALargeGpu) {
  fit::Request r = xl();
  job_of(r).seq2seq.gradient = job_of(r).seq2seq.optimizer.state_dtype = DType::bf16;
  job_of(r).seq2seq.optimizer.rounding = UpdateRounding::stochastic;
  const auto outcome = fit::find_plan(r);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(outcome));
  const fit::PlannedRun& run = std::get<fit::PlannedRun>(outcome);
  EXPECT_EQ(run.policy.name, "resident");
  // 22.8 GB of weights, gradients and moments, 12 GB of activations and what they need.
  EXPECT_LT(run.needed(Tier::device).count, 40 * kGb);
}

TEST(T5Fit, EightBitMomentsTrainInsideFourteenAndAHalfGigabytes) {
  fit::Request r = xl();
  job_of(r).seq2seq.gradient = DType::bf16;
  job_of(r).seq2seq.optimizer.kind = OptimizerKind::adamw8bit;
  job_of(r).seq2seq.optimizer.rounding = UpdateRounding::stochastic;
  r.budget.gpu = Bytes{14 * kGb + kGb / 2};
  const auto outcome = fit::find_plan(r);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(outcome));
  const fit::PlannedRun& run = std::get<fit::PlannedRun>(outcome);
  EXPECT_LE(run.needed(Tier::device), r.budget.gpu);
  EXPECT_GT(run.policy.stream().slots, 0);
  EXPECT_GT(run.policy.stream().resident_groups, 20)
      << describe(job_of(r).seq2seq.config, run.policy);
}

TEST(T5Fit, ExactAdamWTrainsInsideSixteenGigabytes) {
  fit::Request r = xl();
  r.budget.gpu = Bytes{16 * kGb};
  const auto outcome = fit::find_plan(r);
  ASSERT_TRUE(std::holds_alternative<fit::PlannedRun>(outcome));
  const fit::PlannedRun& run = std::get<fit::PlannedRun>(outcome);
  EXPECT_LE(run.needed(Tier::device), r.budget.gpu);
  EXPECT_LE(run.needed(Tier::host), r.budget.host);
}

TEST(T5Fit, ChangesThatHelpComeFirst) {
  fit::Request r = {.job = FitJob()};
  job_of(r).seq2seq.config = support::tiny_t5();
  job_of(r).seq2seq.trains = job_of(r).seq2seq.record_update = true;
  job_of(r).seq2seq.batches = {{.samples = 4, .source = 64, .target = 64}};
  job_of(r).weights = planned_groups(job_of(r).seq2seq.config, DType::f32);
  r.profile = *find_profile("h200");
  r.backend = {.threads = 2};
  const fit::PlannedRun lean = fit::plan_run(r, *find_policy("recompute"));
  const Bytes enough = lean.needed(Tier::host) + lean.needed(Tier::device);
  r.budget = {.gpu = enough, .host = enough, .disk = Bytes{kGb}};
  EXPECT_TRUE(std::holds_alternative<fit::PlannedRun>(fit::find_plan(r)));
  r.budget.host = Bytes{lean.needed(Tier::host).count / 2};
  const auto outcome = fit::find_plan(r);
  ASSERT_TRUE(std::holds_alternative<Refusal>(outcome));
  const std::vector<Shortage>& missing = std::get<Refusal>(outcome).shortages;
  ASSERT_FALSE(missing.empty());
  EXPECT_GT(missing[0].needed, missing[0].allowed);
  const auto changes = fit::try_changes(
      r, std::get<Refusal>(outcome),
      {{"--batch-size 2", [](fit::Request& q) { job_of(q).seq2seq.batches[0].samples = 2; }},
       {"--ram", [&](fit::Request& q) { q.budget.host = enough; }}});
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].text, "--ram");
  EXPECT_TRUE(changes[0].fits);
  EXPECT_FALSE(changes[1].fits);
}

}  // namespace
}  // namespace ballast::t5
