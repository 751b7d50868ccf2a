// A run in two parts ends where the same run in one part ends, whatever state its optimizer keeps.
// (Ends by kill -9: tests/e2e/kill_and_resume_test.cpp.)

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"

namespace ballast::train {
namespace {

using support::RunTrace;
using support::TinyTraining;
using support::trace_of;
using support::train_in_process;
using support::Variant;

Variant resumed(const TrainOutcome& first, std::vector<Setting> more = {}) {
  Variant v = {"resumed", std::nullopt, 1, {{"resume", {first.folder}, "--resume"}}};
  v.flags.insert(v.flags.end(), more.begin(), more.end());
  return v;
}

struct Method {
  const char* name;
  const char* tables;
};

class Resume : public ::testing::TestWithParam<Method> {
 protected:
  Resume() : training_(support::trainable_config(1)) {
    training_.add_clips(3, {4, 1, 4, 4}, "small");
    training_.add_clips(2, {4, 2, 4, 4}, "long");
  }
  std::string config(const std::string& extra = "") {
    return training_.write_config("epochs = 2\nlr_scheduler = 'linear'\nwarmup_steps = 3\n" + extra,
                                  GetParam().tables);
  }
  TinyTraining training_;
};

TEST_P(Resume, EndsWhereAnUninterruptedRunEnds) {
  const RunTrace whole = trace_of(config());
  ASSERT_EQ(whole.steps.size(), 10u);
  for (const int stop : {2, 5, 9}) {  // 5: the end of an epoch
    const TrainOutcome first = train_in_process(config(fmt::format("max_steps = {}", stop)));
    const RunTrace second = trace_of(config(), resumed(first));
    EXPECT_EQ(whole.steps, second.steps) << "stopped after " << stop;
    for (const auto& [name, bytes] : whole.files) EXPECT_EQ(second.files.at(name), bytes) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Methods, Resume,
    ::testing::Values(
        Method{"adamw",
               "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\ndropout = 0.2\n"
               "[optimizer]\ntype = 'adamw'\nlr = 1e-2\n"},
        Method{"eight_bits",
               "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'bfloat16'\n"
               "[optimizer]\ntype = 'AdamW8bit'\nlr = 1e-2\nrounding = 'stochastic'\n"},
        Method{"adafactor",
               "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
               "[optimizer]\ntype = 'adafactor'\nlr = 1e-2\n"
               "scale_parameter = false\nrelative_step = false\n"},
        Method{"stable",
               "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'bfloat16'\n"
               "[optimizer]\ntype = 'stableadamw'\nlr = 1e-2\n"},
        Method{"momentum",
               "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
               "[optimizer]\ntype = 'sgd'\nlr = 1e-2\nmomentum = 0.9\n"},
        Method{"full", "[optimizer]\ntype = 'adamw'\nlr = 1e-3\nema_decay = 0.9\n"}),
    [](const auto& param) { return std::string(param.param.name); });

class ResumedFolder : public ::testing::Test {
 protected:
  ResumedFolder() : training_(support::trainable_config(1)) {
    training_.add_clips(4, {4, 1, 4, 4});
  }
  TinyTraining training_;
};

TEST_F(ResumedFolder, WithoutACheckpointBeginsAtTheBeginning) {
  training_.add_clips(1, {4, 1, 4, 4}, "held_out", "eval");
  const std::string config = training_.write_config(
      fmt::format("epochs = 1\neval_datasets = ['{}']\n", training_.path("eval")));
  const RunTrace whole = trace_of(config);
  const TrainOutcome first = train_in_process(config);
  std::filesystem::remove_all(first.folder + "/checkpoints");
  EXPECT_EQ(support::difference(whole, trace_of(config, resumed(first))), "");
}

TEST_F(ResumedFolder, OfAFinishedRunHasNothingLeftToDo) {
  const std::string config = training_.write_config();
  const TrainOutcome first = train_in_process(config);
  const RunTrace before = support::read_trace(first.folder);
  std::filesystem::remove_all(first.folder + "/epoch1");  // as if killed before it was there
  const TrainOutcome again = train_in_process(config, resumed(first));
  EXPECT_EQ(again.steps, first.steps);
  EXPECT_EQ(support::difference(before, support::read_trace(first.folder)), "");
}

TEST_F(ResumedFolder, OfAnotherSeedIsRefused) {
  const TrainOutcome first = train_in_process(training_.write_config("epochs = 1\nseed = 1"));
  EXPECT_FAILS(train_in_process(training_.write_config("epochs = 2\nseed = 2"), resumed(first)),
               ErrorCode::input, "was trained with seed 1, the configuration says 2");
}

TEST_F(ResumedFolder, MayForgetItsOptimizer) {
  const auto half = [&] {
    return train_in_process(training_.write_config("epochs = 2\nmax_steps = 4"));
  };
  const TrainOutcome first = half(), other = half();
  const std::string config = training_.write_config("epochs = 2");
  const RunTrace kept = trace_of(config, resumed(first));
  const RunTrace forgot =
      trace_of(config, resumed(other, {{"reset_optimizer", {}, "--reset_optimizer"}}));
  EXPECT_EQ(kept.steps.at(5), forgot.steps.at(5)) << "the same weights";
  EXPECT_NE(kept.steps.at(6), forgot.steps.at(6)) << "moments from nothing";
}

// Damaged after it was written: in a tensor, and in the header of the file.
TEST_F(ResumedFolder, GoesBackToTheNewestCheckpointThatIsWhole) {
  const std::string more = "\nkeep_checkpoints = 100\ncheckpoint_every_n_steps = 1";
  const std::string config = training_.write_config("epochs = 2" + more);
  const RunTrace whole = trace_of(config);
  const TrainOutcome first =
      train_in_process(training_.write_config("epochs = 2\nmax_steps = 4" + more));
  const auto damage = [&](std::int64_t step, bool header) {
    const std::string path =
        fmt::format("{}/checkpoints/{}/{}", first.folder, checkpoint_name(step), kStateFile);
    std::string bytes = test::read_whole(path);
    char& flipped = bytes[header ? bytes.find("lora") : bytes.size() - 3];
    flipped = static_cast<char>(flipped ^ 2);
    std::ofstream(path) << bytes;
  };
  damage(4, false);
  damage(3, true);
  const RunTrace again = trace_of(training_.write_config("epochs = 2" + more), resumed(first));
  EXPECT_EQ(whole.steps, again.steps);
  for (const auto& [name, bytes] : whole.files) EXPECT_EQ(again.files.at(name), bytes) << name;
}

TEST_F(ResumedFolder, WithoutAWholeCheckpointSaysWhy) {
  const TrainOutcome first = train_in_process(training_.write_config("epochs = 2\nmax_steps = 4"));
  std::string path;
  for (const auto& f : std::filesystem::recursive_directory_iterator(first.folder)) {
    if (f.path().filename() != kStateFile) continue;
    path = f.path().string();
    std::string bytes = test::read_whole(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 2);
    std::ofstream(path) << bytes;
  }
  EXPECT_FAILS(train_in_process(training_.write_config("epochs = 2"), resumed(first)),
               ErrorCode::input, "its bytes are not those that were written: the checksum is");
}

}  // namespace
}  // namespace ballast::train
