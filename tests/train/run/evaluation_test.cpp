#include "train/run/evaluation.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "tests/report/event_reader.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/run/run_records.h"

namespace ballast::train {
namespace {

using support::RunTrace;
using support::trace_of;

class Evaluation : public ::testing::Test {
 protected:
  Evaluation() : training_(support::trainable_config(1)) {
    training_.add_clips(4, {4, 1, 4, 4});
    training_.add_clips(2, {4, 1, 4, 4}, "same_size", "eval");
    training_.add_clips(1, {4, 2, 8, 8}, "larger", "eval");  // than all that is trained on
  }
  std::string config(const std::string& extra, double rate) {
    return training_.write_config(
        "epochs = 1\ngradient_accumulation_steps = 2\n" + extra,
        fmt::format("[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\ndropout = 0.2\n"
                    "[optimizer]\ntype = 'adamw'\nlr = {}\n",
                    rate));
  }
  std::string evaluated() const {
    return fmt::format("eval_every_n_steps = 1\neval_datasets = ['{}']\n", training_.path("eval"));
  }
  support::TinyTraining training_;
};

TEST_F(Evaluation, GivesTheSameLossForTheSameWeights) {
  const RunTrace still = trace_of(config(evaluated(), 0));
  ASSERT_EQ(still.evals.size(), 3u);  // before the first step, after each
  for (const auto& [step, text] : still.evals) EXPECT_EQ(text, still.evals.at(0)) << step;
  const RunTrace trained = trace_of(config(evaluated(), 1e-2));
  EXPECT_EQ(trained.evals.at(0), still.evals.at(0));
  EXPECT_NE(trained.evals.at(2), still.evals.at(0));
}

TEST_F(Evaluation, DoesNotDependOnMemoryPolicyOrThreads) {
  const std::string path = config(evaluated(), 1e-2);
  const RunTrace resident = trace_of(path, {"resident", find_policy("resident")});
  MemoryPolicy lean = *find_policy("stream1");
  lean.samples_per_pass = 1;
  EXPECT_EQ(support::difference(resident, trace_of(path, {"stream1", lean, 1})), "");
}

TEST_F(Evaluation, ChangesNoBitOfTheTraining) {
  RunTrace with = trace_of(config(evaluated(), 1e-2));
  with.evals.clear();
  EXPECT_EQ(support::difference(trace_of(config("", 1e-2)), with), "");
}

// With x_axis_examples all curves stand over samples, not some over steps.
TEST_F(Evaluation, StandsBesideTheTrainingInTensorBoard) {
  (void)trace_of(config(evaluated() + "x_axis_examples = true\n", 1e-2));
  std::map<std::string, std::vector<std::int64_t>> places;
  for (const auto& e : std::filesystem::recursive_directory_iterator(training_.path("out"))) {
    if (!e.path().filename().string().starts_with("events.out.")) continue;
    for (const auto& event : test::read_events(test::read_whole(e.path().string()))) {
      for (const auto& value : event.values) places[value.tag].push_back(event.step);
    }
  }
  using Places = std::vector<std::int64_t>;
  EXPECT_EQ(places["train/loss"], (Places{2, 4}));
  EXPECT_EQ(places["eval0/loss"], (Places{0, 2, 4}));
  EXPECT_EQ(places["eval0/loss_quantile_0.50"], (Places{0, 2, 4}));
  EXPECT_EQ(places["eval/eval_time_sec"], (Places{0, 2, 4}));
  EXPECT_EQ(places["train/epoch_loss"], (Places{4}));
}

// What a killed run wrote of later steps is where it goes on, on the same axis.
TEST(RunRecords, OfAResumedRunBeginBehindItsPlace) {
  const test::TempDir dir;
  {
    RunRecords records(dir.path(), {}, 3, 12, true);
    records.scalar("train/epoch_loss", 1);
  }
  std::vector<std::int64_t> restarts, places;
  for (const auto& e : std::filesystem::directory_iterator(dir.path())) {
    if (!e.path().filename().string().starts_with("events.out.")) continue;
    for (const auto& event : test::read_events(test::read_whole(e.path().string()))) {
      if (event.restart) restarts.push_back(event.step);
      if (!event.values.empty()) places.push_back(event.step);
    }
  }
  EXPECT_EQ(restarts, std::vector<std::int64_t>{13});
  EXPECT_EQ(places, std::vector<std::int64_t>{12});
}

}  // namespace
}  // namespace ballast::train
