#include "models/wan/fit_switched.h"

#include <gtest/gtest.h>

#include "models/wan/weights.h"
#include "tests/support/tiny_dit.h"

namespace ballast::wan {
namespace {

FitRequest request(Mode mode) {
  FitRequest r;
  r.job.config = support::tiny_config();
  r.job.mode = mode;
  r.job.noising = mode == Mode::infer ? Noising::given : Noising::recorded;
  r.job.record_update = mode != Mode::infer;
  r.job.batches = {{.latents = {{2, 8, 8}, {2, 8, 8}}, .timestep_rows = 2}};
  r.experts = {planned_groups(r.job.config, DType::bf16)};
  r.backend = {.device = Device::cpu, .threads = 1};
  r.profile.gemm_flops = r.profile.attention_flops = r.profile.attention_backward_flops = 1e9;
  r.profile.memory_bandwidth = r.profile.upload_bandwidth = r.profile.download_bandwidth = 1e9;
  r.profile.disk_bandwidth = 1e8;
  r.budget = {.gpu = 1_GiB, .host = 1_GiB, .disk = {}};
  return r;
}

PlannedRun planned(const FitRequest& r) {
  auto outcome = fit(r);
  EXPECT_TRUE(std::holds_alternative<PlannedRun>(outcome));
  return std::move(std::get<PlannedRun>(outcome));
}

TEST(FitSwitched, EveryPolicyKeepsToTheSwitches) {
  for (const Mode mode : {Mode::lora, Mode::full}) {
    for (const Choice checkpointing : {Choice::automatic, Choice::on, Choice::off}) {
      for (const Choice offloading : {Choice::automatic, Choice::on, Choice::off}) {
        FitRequest r = request(mode);
        r.checkpointing = checkpointing;
        r.offloading = offloading;
        const std::vector<MemoryPolicy> policies = switched_policies(r);
        ASSERT_FALSE(policies.empty());
        for (const MemoryPolicy& p : policies) {
          if (checkpointing == Choice::on) {
            EXPECT_NE(p.activations, Activations::kept);
          }
          if (checkpointing == Choice::off) {
            EXPECT_EQ(p.activations, Activations::kept);
          }
          if (offloading == Choice::on) {
            EXPECT_TRUE(p.slots > 0 && p.offload);
          }
          if (offloading == Choice::off) {
            EXPECT_FALSE(p.slots > 0 || p.offload || p.state_on_host);
          }
        }
      }
    }
  }
}

TEST(FitSwitched, TakesTheFastestThatFits) {
  FitRequest r = request(Mode::lora);
  r.checkpointing = Choice::on;
  const PlannedRun fastest = planned(r);
  for (const MemoryPolicy& p : switched_policies(r)) {
    EXPECT_LE(fastest.seconds_per_step(), plan_run(r, p).seconds_per_step());
  }
  r.budget.gpu = fastest.needed(Tier::device) - Bytes{1};
  const PlannedRun smaller = planned(r);
  EXPECT_LT(smaller.needed(Tier::device), fastest.needed(Tier::device));
}

TEST(FitSwitched, RefusesWithTheClosestPlan) {
  FitRequest r = request(Mode::lora);
  r.checkpointing = r.offloading = Choice::off;
  r.budget.gpu = Bytes{1000};
  const auto outcome = fit(r);
  const auto* refusal = std::get_if<Refusal>(&outcome);
  ASSERT_TRUE(refusal);
  Bytes least{UINT64_MAX};
  for (const MemoryPolicy& p : switched_policies(r)) {
    least = std::min(least, plan_run(r, p).needed(Tier::device));
  }
  EXPECT_EQ(refusal->needed[0], least);
  EXPECT_GT(refusal->seconds_per_step, 0);
}

TEST(FitSwitched, SwitchesInferenceTheSameWay) {
  FitRequest r = request(Mode::infer);
  const Bytes resident = planned(r).needed(Tier::device);
  r.offloading = Choice::on;
  EXPECT_LT(planned(r).needed(Tier::device), resident);
}

}  // namespace
}  // namespace ballast::wan
