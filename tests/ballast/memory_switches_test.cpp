#include <gtest/gtest.h>

#include "tests/ballast/small_model.h"

// Checkpointing and offloading save memory and change no bit.

namespace ballast {
namespace {

using support::SmallModel;
using v1::Model;

constexpr v1::LatentSize kLatent = {.frames = 2, .height = 16, .width = 16};

struct Trained {
  v1::Plan plan;
  std::vector<v1::StepResult> steps;
  std::string lora;
};

Model switched(const SmallModel& small, bool checkpointing, bool offloading) {
  Model m = small.open(2, kLatent);
  checkpointing ? m.enable_gradient_checkpointing() : m.disable_gradient_checkpointing();
  offloading ? m.enable_offloading() : m.disable_offloading();
  return m;
}

Trained train(SmallModel& small, Model m) {
  const test::TempDir dir;
  Trained t;
  t.plan = m.plan();
  for (int i = 0; i < 3; ++i) t.steps.push_back(m.step(small.samples(2, 2 * i, kLatent)));
  m.save_lora(dir.path("lora.safetensors"), v1::LoraFormat::comfy, v1::SaveType::f32);
  t.lora = test::read_whole(dir.path("lora.safetensors"));
  return t;
}

TEST(MemorySwitches, ChangeNoBit) {
  SmallModel small;
  const Trained plain = train(small, switched(small, false, false));
  for (const auto& [checkpointing, offloading] :
       {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
    SCOPED_TRACE(testing::Message() << checkpointing << offloading);
    const Trained t = train(small, switched(small, checkpointing, offloading));
    for (std::size_t i = 0; i < t.steps.size(); ++i) {
      EXPECT_EQ(t.steps[i].loss, plain.steps[i].loss);
      EXPECT_EQ(t.steps[i].grad_norm, plain.steps[i].grad_norm);
    }
    EXPECT_TRUE(t.lora == plain.lora);
  }
  EXPECT_TRUE(train(small, small.open(2, kLatent)).lora == plain.lora);  // the planner's choice
}

TEST(MemorySwitches, SaveMemory) {
  const SmallModel small;
  const v1::Plan none = switched(small, false, false).plan();
  const v1::Plan checkpointing = switched(small, true, false).plan();
  const v1::Plan offloading = switched(small, false, true).plan();
  const v1::Plan both = switched(small, true, true).plan();
  EXPECT_LT(checkpointing.planned.device, none.planned.device);
  EXPECT_LT(offloading.planned.device, none.planned.device);
  EXPECT_LT(both.planned.device, checkpointing.planned.device);
  EXPECT_LT(both.planned.device, offloading.planned.device);
  EXPECT_LT(checkpointing.planned.ram, none.planned.ram);
  EXPECT_GT(checkpointing.seconds_per_step, none.seconds_per_step);
}

TEST(MemorySwitches, AreAdvisedWhereTheyHelp) {
  const SmallModel small;
  // As much as either switch alone needs.
  const std::uint64_t enough = std::max(switched(small, true, false).plan().planned.device,
                                        switched(small, false, true).plan().planned.device);
  Model m = switched(small, false, false);
  m.set_budget({.gpu = enough, .ram = 1'000'000'000});
  const v1::Plan p = m.plan();
  EXPECT_FALSE(p.fits);
  const auto advises = [&](const char* change) {
    return std::ranges::any_of(p.advice, [&](const v1::Advice& a) {
      return a.change == change && a.effect.starts_with("fits");
    });
  };
  EXPECT_TRUE(advises("enable_gradient_checkpointing()"));
  EXPECT_TRUE(advises("enable_offloading()"));
  EXPECT_TRUE(advises("leave_memory_to_the_planner()"));
  m.enable_gradient_checkpointing();
  EXPECT_TRUE(m.plan().fits);
}

}  // namespace
}  // namespace ballast
