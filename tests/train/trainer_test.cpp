#include "train/trainer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "report/run_log.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/config/read_config.h"

namespace ballast::train {
namespace {

using support::TinyTraining;

TrainOutcome train_config(const std::string& config, std::vector<Setting> flags = {}) {
  PreparedRun run =
      prepare_run(read_config(config, flags), support::small_machine(), Purpose::train);
  auto outcome = fit::find_plan(run.request);
  EXPECT_TRUE(std::holds_alternative<fit::PlannedRun>(outcome));
  return train(std::move(run), std::move(std::get<fit::PlannedRun>(outcome)), {});
}

RunHistory history(const TrainOutcome& o) {
  return read_run_log(o.folder + "/" + std::string(kRunLogFile));
}

TEST(Trainer, TrainsALoraAndSavesIt) {
  TinyTraining t;
  t.add_clips(4, {4, 2, 8, 8});
  const TrainOutcome o = train_config(t.write_config("epochs = 5"));
  EXPECT_EQ(o.steps, 20);
  EXPECT_FALSE(o.stopped);
  EXPECT_TRUE(std::filesystem::exists(o.folder + "/epoch5/adapter_model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(o.report));
  const RunHistory h = history(o);
  ASSERT_EQ(h.steps.size(), 20u);
  // Sanitizers keep shadow memory that no plan knows.
  if (!allocation_hook::missing()) {
    EXPECT_LE(o.measured, o.planned);
  }
}

TEST(Trainer, KeepsTheFilesThatARunCameFrom) {
  TinyTraining t;
  t.add_clips(2, {4, 1, 4, 4});
  const test::TempDir dir;
  const std::string dataset =
      dir.write("clips.toml",
                fmt::format("resolutions = [32]\n[[directory]]\npath = '{}'\n", t.path("clips")));
  std::string text = test::read_whole(t.write_config("epochs = 1"));
  const std::string folder = fmt::format("dataset = '{}'", t.path("clips"));
  ASSERT_NE(text.find(folder), std::string::npos) << text;
  text.replace(text.find(folder), folder.size(), fmt::format("dataset = '{}'", dataset));
  const std::string config = dir.write("mine.toml", text);
  const TrainOutcome o = train_config(config);
  EXPECT_EQ(test::read_whole(o.folder + "/mine.toml"), text);
  EXPECT_EQ(test::read_whole(o.folder + "/clips.toml"), test::read_whole(dataset));
  EXPECT_EQ(test::read_whole(o.folder + "/epoch1/mine.toml"), text);
}

TEST(Trainer, LearnsWhatIsThere) {
  TinyTraining t;
  t.add_clips(1, {4, 1, 4, 4});
  const TrainOutcome o = train_config(t.write_config(
      "epochs = 150", "[optimizer]\ntype = 'adamw'\nlr = 2e-3\n"));  // a full fine-tune
  const RunHistory h = history(o);
  const auto mean = [&](std::size_t from, std::size_t to) {
    double sum = 0;
    for (std::size_t i = from; i < to; ++i) sum += h.steps[i].loss;
    return sum / static_cast<double>(to - from);
  };
  EXPECT_LT(mean(130, 150), 0.7 * mean(0, 20));
}

}  // namespace
}  // namespace ballast::train
