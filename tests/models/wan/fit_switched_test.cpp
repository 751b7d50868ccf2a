#include <gtest/gtest.h>

#include "fit/fit.h"
#include "models/wan/fit_job.h"
#include "models/wan/weights.h"
#include "tests/support/tiny_dit.h"

namespace ballast::wan {
namespace {

fit::Request request(Mode mode) {
  fit::Request r = {.job = FitJob()};
  job_of(r).dit.config = support::tiny_config();
  job_of(r).dit.mode = mode;
  job_of(r).dit.noising = mode == Mode::infer ? Noising::given : Noising::recorded;
  job_of(r).dit.record_update = mode != Mode::infer;
  job_of(r).dit.batches = {{.latents = {{2, 8, 8}, {2, 8, 8}}, .timestep_rows = 2}};
  job_of(r).experts = {planned_groups(job_of(r).dit.config, DType::bf16)};
  r.backend = {.device = Device::cpu, .threads = 1};
  r.profile.gemm_flops = r.profile.attention_flops = r.profile.attention_backward_flops = 1e9;
  r.profile.memory_bandwidth = r.profile.upload_bandwidth = r.profile.download_bandwidth = 1e9;
  r.profile.disk_bandwidth = 1e8;
  r.budget = {.gpu = 1_GiB, .host = 1_GiB, .disk = {}};
  return r;
}

fit::PlannedRun planned(const fit::Request& r) {
  auto outcome = fit::find_plan(r);
  EXPECT_TRUE(std::holds_alternative<fit::PlannedRun>(outcome));
  return std::move(std::get<fit::PlannedRun>(outcome));
}

TEST(FitSwitched, EveryPolicyKeepsToTheSwitches) {
  for (const Mode mode : {Mode::lora, Mode::full}) {
    for (const fit::Choice checkpointing :
         {fit::Choice::automatic, fit::Choice::on, fit::Choice::off}) {
      for (const fit::Choice offloading :
           {fit::Choice::automatic, fit::Choice::on, fit::Choice::off}) {
        fit::Request r = request(mode);
        r.switches.checkpointing = checkpointing;
        r.switches.offloading = offloading;
        const std::vector<MemoryPolicy> policies = job_of(r).switched(r.switches);
        ASSERT_FALSE(policies.empty());
        for (const MemoryPolicy& p : policies) {
          if (checkpointing == fit::Choice::on) {
            EXPECT_NE(p.activations, Activations::kept);
          }
          if (checkpointing == fit::Choice::off) {
            EXPECT_EQ(p.activations, Activations::kept);
          }
          if (offloading == fit::Choice::on) {
            EXPECT_TRUE(p.streams() && p.offload);
          }
          if (offloading == fit::Choice::off) {
            EXPECT_FALSE(p.streams() || p.offload || p.state_on_host);
          }
        }
      }
    }
  }
}

TEST(FitSwitched, TakesTheFastestThatFits) {
  fit::Request r = request(Mode::lora);
  r.switches.checkpointing = fit::Choice::on;
  const fit::PlannedRun fastest = planned(r);
  for (const MemoryPolicy& p : job_of(r).switched(r.switches)) {
    EXPECT_LE(fastest.seconds_per_step(), fit::plan_run(r, p).seconds_per_step());
  }
  r.budget.gpu = fastest.needed(Tier::device) - Bytes{1};
  const fit::PlannedRun smaller = planned(r);
  EXPECT_LT(smaller.needed(Tier::device), fastest.needed(Tier::device));
}

TEST(FitSwitched, RefusesWithTheClosestPlan) {
  fit::Request r = request(Mode::lora);
  r.switches = {.checkpointing = fit::Choice::off, .offloading = fit::Choice::off};
  r.budget.gpu = Bytes{1000};
  const auto outcome = fit::find_plan(r);
  const auto* refusal = std::get_if<Refusal>(&outcome);
  ASSERT_TRUE(refusal);
  Bytes least{UINT64_MAX};
  for (const MemoryPolicy& p : job_of(r).switched(r.switches)) {
    least = std::min(least, fit::plan_run(r, p).needed(Tier::device));
  }
  EXPECT_EQ(refusal->needed[0], least);
  EXPECT_GT(refusal->seconds_per_step, 0);
}

TEST(FitSwitched, SwitchesInferenceTheSameWay) {
  fit::Request r = request(Mode::infer);
  const Bytes resident = planned(r).needed(Tier::device);
  r.switches.offloading = fit::Choice::on;
  EXPECT_LT(planned(r).needed(Tier::device), resident);
}

}  // namespace
}  // namespace ballast::wan
