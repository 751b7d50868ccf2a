// Plans of a training inside budgets: what stays, what streams, what is refused.

#include "models/t5/fit.h"

#include <gtest/gtest.h>

#include "models/t5/weights.h"
#include "tests/support/tiny_t5.h"

namespace ballast::t5 {
namespace {

constexpr std::uint64_t kGb = 1'000'000'000;

// FLAN-T5-XL's shapes on an H200, 8 samples of 512 and 256 tokens; no GPU is needed to plan it.
FitRequest xl() {
  FitRequest r;
  r.job.config = *find_preset("t5-v1.1-xl");
  r.job.precision = precision_on(Device::cuda);
  r.job.trains = r.job.record_update = true;
  r.job.batches = {{.samples = 8, .source = 512, .target = 256}};
  r.job.max_grad_norm = 1;
  r.groups = planned_groups(r.job.config, DType::bf16);
  r.profile = *find_profile("h200");
  r.backend = {.device = Device::cuda, .threads = 8, .sm = r.profile.sm};
  r.budget = {.gpu = r.profile.device_memory, .host = Bytes{100 * kGb}, .disk = Bytes{kGb}};
  return r;
}

TEST(T5Fit, KeepsEverythingOnALargeGpu) {
  FitRequest r = xl();
  r.job.gradient = r.job.optimizer.state_dtype = DType::bf16;
  r.job.optimizer.rounding = UpdateRounding::stochastic;
  const auto outcome = fit(r);
  ASSERT_TRUE(std::holds_alternative<PlannedRun>(outcome));
  const PlannedRun& run = std::get<PlannedRun>(outcome);
  EXPECT_EQ(run.policy.name, "resident");
  // 22.8 GB of weights, gradients and moments, 12 GB of activations and what they need.
  EXPECT_LT(run.needed(Tier::device).count, 40 * kGb);
}

TEST(T5Fit, EightBitMomentsTrainInsideFourteenAndAHalfGigabytes) {
  FitRequest r = xl();
  r.job.gradient = DType::bf16;
  r.job.optimizer.kind = OptimizerKind::adamw8bit;
  r.job.optimizer.rounding = UpdateRounding::stochastic;
  r.budget.gpu = Bytes{14 * kGb + kGb / 2};
  const auto outcome = fit(r);
  ASSERT_TRUE(std::holds_alternative<PlannedRun>(outcome));
  const PlannedRun& run = std::get<PlannedRun>(outcome);
  EXPECT_LE(run.needed(Tier::device), r.budget.gpu);
  EXPECT_GT(run.policy.slots, 0);
  EXPECT_GT(run.policy.resident_groups, 20) << describe(r.job.config, run.policy);
}

TEST(T5Fit, ExactAdamWTrainsInsideSixteenGigabytesAndIsRefusedWithoutHostMemory) {
  FitRequest r = xl();
  r.budget.gpu = Bytes{16 * kGb};
  const auto outcome = fit(r);
  ASSERT_TRUE(std::holds_alternative<PlannedRun>(outcome));
  const PlannedRun& run = std::get<PlannedRun>(outcome);
  EXPECT_LE(run.needed(Tier::device), r.budget.gpu);
  EXPECT_LE(run.needed(Tier::host), r.budget.host);

  r.budget.host = Bytes{8 * kGb};
  const auto refused = fit(r);
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  const Refusal& refusal = std::get<Refusal>(refused);
  ASSERT_FALSE(refusal.shortages.empty());
  EXPECT_GT(refusal.shortages[0].needed, refusal.shortages[0].allowed);
}

TEST(T5Fit, ChangesThatHelpComeFirst) {
  FitRequest r;
  r.job.config = support::tiny_t5();
  r.job.trains = r.job.record_update = true;
  r.job.batches = {{.samples = 4, .source = 64, .target = 64}};
  r.groups = planned_groups(r.job.config, DType::f32);
  r.profile = *find_profile("h200");
  r.backend = {.threads = 2};
  const PlannedRun lean = plan_run(r, *find_policy("recompute"));
  const Bytes enough = lean.needed(Tier::host) + lean.needed(Tier::device);
  r.budget = {.gpu = enough, .host = enough, .disk = Bytes{kGb}};
  EXPECT_TRUE(std::holds_alternative<PlannedRun>(fit(r)));
  r.budget.host = Bytes{lean.needed(Tier::host).count / 2};
  const auto outcome = fit(r);
  ASSERT_TRUE(std::holds_alternative<Refusal>(outcome));
  const auto changes =
      try_changes(r, std::get<Refusal>(outcome),
                  {{"--batch-size 2", [](FitRequest& q) { q.job.batches[0].samples = 2; }},
                   {"--ram", [&](FitRequest& q) { q.budget.host = enough; }}});
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].text, "--ram");
  EXPECT_TRUE(changes[0].fits);
  EXPECT_FALSE(changes[1].fits);
}

}  // namespace
}  // namespace ballast::t5
