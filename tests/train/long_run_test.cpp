#include <gtest/gtest.h>

#include "tests/support/allocation_hook.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"

namespace ballast::train {
namespace {

TEST(LongRun, TakesNoMemoryAfterItsFirstSteps) {
  SKIP_WITHOUT_ALLOCATION_HOOK();  // sanitizers keep memory that was freed
  wan::Config config = support::trainable_config(1);
  config.ffn_dim = 32;
  support::TinyTraining t(config);
  t.add_clips(1, {4, 1, 2, 2});
  const std::string path = t.write_config(
      "epochs = 10000\nsteps_per_print = 1000\nmemory_line_steps = 100\n"
      "checkpoint_every_n_steps = 2500\n",
      "[adapter]\ntype = 'lora'\nrank = 1\ndtype = 'float32'\n"
      "exclude_modules = ['q', 'k', 'v', 'cross_attn.o', 'ffn.0', 'ffn.2']\n"
      "[optimizer]\ntype = 'adamw'\nlr = 1e-4\n");
  const TrainOutcome o = support::train_in_process(path, {"one thread", std::nullopt, 1});
  ASSERT_EQ(o.steps, 10000);
  EXPECT_LE(o.measured, o.planned);
  const std::vector<StepRecord> steps =
      read_run_log(o.folder + "/" + std::string(kRunLogFile)).steps;
  ASSERT_EQ(steps.size(), 10000u);
  const StepRecord& early = steps[99];
  for (std::size_t i = 99; i < steps.size(); i += 100) {  // counted exactly with each memory line
    const StepRecord& s = steps[i];
    if (support::test_device() == Device::cpu) {
      EXPECT_EQ(s.measured.device, s.planned.device) << "the arena is not the plan's";
    } else {  // all that the process has on the GPU
      EXPECT_EQ(s.measured.device, early.measured.device);
    }
    EXPECT_EQ(s.measured.host, s.planned.host);
    EXPECT_LE(s.measured.ram.count, early.measured.ram.count + (256 << 10)) << "step " << s.step;
  }
}

}  // namespace
}  // namespace ballast::train
