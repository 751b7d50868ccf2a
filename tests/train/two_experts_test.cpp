// Both experts in one run: each is trained on its own side of the boundary, from its own weights.

#include <gtest/gtest.h>

#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/training_checkpoint.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;
using support::difference;
using support::RunTrace;
using support::TinyTraining;
using support::trace_of;

constexpr double kBoundary = 0.5;

class TwoExperts : public ::testing::Test {
 protected:
  TwoExperts() : training_(support::trainable_config(1)) {
    training_.add_clips(4, {4, 1, 4, 4});
    const support::TinyCheckpoint low(training_.config(), DType::f32, "low."),
        high(training_.config(), DType::f32, "high.");
    put(low, "low"), put(high, "high");
  }

  // A folder of two experts; the names are those of the weights behind them.
  std::string config(const std::string& low, const std::string& high,
                     const std::string& extra = "") {
    const fs::path folder = training_.path(low + "_" + high);
    for (const auto& [name, from] :
         {std::pair("low_noise_model", low), {"high_noise_model", high}}) {
      fs::create_directories(folder / name);
      fs::copy(training_.path(from + ".safetensors"), folder / name / "model.safetensors",
               fs::copy_options::overwrite_existing);
    }
    training_.use_model(folder.string());
    return training_.write_config(
        "epochs = 6\ngradient_accumulation_steps = 2\nexperts = 'both'\n" + extra,
        fmt::format("boundary = {}\n[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                    "[optimizer]\ntype = 'adamw'\nlr = 1e-2\n",
                    kBoundary),
        low + "_" + high + ".toml");
  }

  TinyTraining training_;

 private:
  void put(const support::TinyCheckpoint& from, const std::string& name) {
    fs::copy(from.path(), training_.path(name + ".safetensors"));
  }
};

TEST_F(TwoExperts, EachIsTrainedOnItsSideFromItsOwnWeights) {
  const TrainOutcome outcome = support::train_in_process(config("low", "high"));
  const RunTrace both = support::read_trace(outcome.folder);
  // An expert's steps never touch the other's adapters. So with the same weights in both folders
  // its side goes as before, and the other side does not.
  const RunTrace lows = trace_of(config("low", "low")), highs = trace_of(config("high", "high"));

  const RunHistory history = read_run_log(outcome.folder + "/" + std::string(kRunLogFile));
  std::int64_t steps[2] = {};
  for (const StepRecord& s : history.steps) {
    ASSERT_EQ(s.t.size(), 2u);
    const bool high = s.t[0] >= kBoundary;
    EXPECT_EQ(s.t[1] >= kBoundary, high) << "step " << s.step << " is on both sides";
    ++steps[high];
    const std::string& text = both.steps.at(s.step);
    EXPECT_EQ((high ? highs : lows).steps.at(s.step), text);
    EXPECT_NE((high ? lows : highs).steps.at(s.step), text);
  }
  EXPECT_GT(steps[0], 1);
  EXPECT_GT(steps[1], 1);
  const auto found = find_checkpoint(outcome.folder).found;
  ASSERT_TRUE(found);
  EXPECT_EQ(found->state.counts.at("expert_steps.0"), steps[0]);
  EXPECT_EQ(found->state.counts.at("expert_steps.1"), steps[1]);

  const std::string low = "epoch6/adapter_model_low_noise.safetensors",
                    high = "epoch6/adapter_model_high_noise.safetensors";
  EXPECT_EQ(both.files.size(), 3u);
  EXPECT_EQ(both.files.at(low), lows.files.at(low));
  EXPECT_EQ(both.files.at(high), highs.files.at(high));
  EXPECT_NE(both.files.at(high), lows.files.at(high));
}

TEST_F(TwoExperts, StreamedWeightsAreThoseOfTheRightExpert) {
  const std::string path = config("low", "high");
  EXPECT_EQ(difference(trace_of(path, {"resident", find_policy("resident")}),
                       trace_of(path, {"stream1", find_policy("stream1"), 1})),
            "");
  MemoryPolicy from_host = *find_policy("stream2");
  from_host.home = WeightHome::host;
  EXPECT_EQ(difference(trace_of(path, {"resident", find_policy("resident")}),
                       trace_of(path, {"from host", from_host})),
            "");
}

TEST_F(TwoExperts, AResumedRunIsTheSame) {
  const RunTrace whole = trace_of(config("low", "high"));
  for (const int stop : {1, 4, 7}) {
    const TrainOutcome first =
        support::train_in_process(config("low", "high", fmt::format("max_steps = {}", stop)));
    const RunTrace second =
        trace_of(config("low", "high"),
                 {"resumed", std::nullopt, 1, {{"resume", {first.folder}, "--resume"}}});
    EXPECT_EQ(whole.steps, second.steps) << "stopped after " << stop;
    for (const auto& [name, bytes] : whole.files) EXPECT_EQ(second.files.at(name), bytes) << name;
  }
}

}  // namespace
}  // namespace ballast::train
