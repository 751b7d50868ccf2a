// What an epoch of several buckets brings into steps, against the clips that are there.

#include <gtest/gtest.h>

#include <set>

#include "core/to_size.h"
#include "tests/support/tiny_cache.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"

namespace ballast::train {
namespace {

std::vector<StepRecord> steps_of(const TrainOutcome& o) {
  return read_run_log(o.folder + "/" + std::string(kRunLogFile)).steps;
}

// By epoch, by clip: how often it was in a step.
std::map<std::int64_t, std::map<std::string, int>> seen(const std::vector<StepRecord>& steps) {
  std::map<std::int64_t, std::map<std::string, int>> n;
  for (const StepRecord& s : steps) {
    for (const std::string& id : s.samples) ++n[s.epoch][id];
  }
  return n;
}

// "clips/small3" -> "small": clips of one size share a name.
std::string kind_of(std::string id) {
  id = id.substr(id.rfind('/') + 1);
  return id.substr(0, id.find_first_of("0123456789"));
}

TEST(Epochs, OfFourBucketsShowEveryClipOnce) {
  support::TinyTraining t(support::trainable_config(1));
  t.add_clips(4, {4, 1, 4, 4}, "small");
  t.add_clips(2, {4, 2, 4, 4}, "long");
  t.add_clips(6, {4, 1, 4, 6}, "wide");
  t.add_clips(2, {4, 3, 4, 6}, "wide_and_long");
  const auto steps = steps_of(
      support::train_in_process(t.write_config("epochs = 3\ngradient_accumulation_steps = 2")));
  ASSERT_EQ(steps.size(), 21u);
  for (const StepRecord& s : steps) {
    ASSERT_EQ(s.samples.size(), 2u);
    EXPECT_EQ(kind_of(s.samples[0]), kind_of(s.samples[1])) << "step " << s.step;
    EXPECT_EQ(s.t.size(), 2u);
    EXPECT_TRUE(std::isfinite(s.loss));
  }
  const auto by_epoch = seen(steps);
  ASSERT_EQ(by_epoch.size(), 3u);
  for (const auto& [epoch, clips] : by_epoch) {
    EXPECT_EQ(clips.size(), 14u) << "epoch " << epoch;
    for (const auto& [id, times] : clips) EXPECT_EQ(times, 1) << id << " in epoch " << epoch;
  }
}

class MusubiEpochs : public ::testing::Test {
 protected:
  MusubiEpochs() : training_(support::trainable_config(1)) {
    add("wide", 5, 1, {4, 1, 4, 6});
    add("small", 3, 5, {4, 2, 4, 4});
    std::ofstream(training_.path("set.toml"))
        << "[[datasets]]\nvideo_directory = '" << training_.path("v")
        << "'\ntarget_frames = [1, 5]\nresolution = [64, 64]\nbatch_size = 2\n";
  }
  void add(const std::string& kind, int count, int frames, const data::LatentShape& s) {
    for (int i = 0; i < count; ++i) {
      const std::string stem = training_.path(fmt::format("v/{}{}", kind, i));
      test::write_tensors(fmt::format("{}_00000-{:03}_{:04}x{:04}_wan.safetensors", stem, frames,
                                      8 * s.width, 8 * s.height),
                          {{fmt::format("latents_{}x{}x{}_float32", s.frames, s.height, s.width),
                            {s.channels, s.frames, s.height, s.width}}});
      test::write_tensors(stem + "_wan_te.safetensors",
                          {{"varlen_t5_float32", {3, training_.config().text_dim}}});
    }
  }
  TrainOutcome train(std::vector<std::string> more, const MemoryPolicy& policy) {
    std::vector<std::string> arguments = {"--dit",
                                          training_.model_path(),
                                          "--dataset_config",
                                          training_.path("set.toml"),
                                          "--output_dir",
                                          training_.path("out"),
                                          "--output_name",
                                          "my_lora",
                                          "--timestep_sampling",
                                          "uniform",
                                          "--max_train_epochs",
                                          "3",
                                          "--learning_rate",
                                          "1e-3",
                                          "--mixed_precision",
                                          "no"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    PreparedRun run = prepare_run(read_config(arguments), support::small_machine(), Purpose::train);
    run.request.policy = policy;
    auto outcome = fit::find_plan(run.request);
    return ballast::train::train(std::move(run), std::move(std::get<fit::PlannedRun>(outcome)), {});
  }
  support::TinyTraining training_;
};

TEST_F(MusubiEpochs, KeepWhatIsLeftOverInSmallerSteps) {
  for (const int accumulation : {1, 2}) {
    const std::vector<std::string> flags = {"--gradient_accumulation_steps",
                                            std::to_string(accumulation)};
    const TrainOutcome o = train(flags, *find_policy("resident"));
    const auto steps = steps_of(o);
    const auto by_epoch = seen(steps);
    ASSERT_EQ(by_epoch.size(), 3u);
    for (const auto& [epoch, clips] : by_epoch) {
      EXPECT_EQ(clips.size(), 8u) << "epoch " << epoch;
      for (const auto& [id, times] : clips) EXPECT_EQ(times, 1) << id << " in epoch " << epoch;
    }
    std::set<std::size_t> sizes;
    for (const StepRecord& s : steps) {
      sizes.insert(s.samples.size());
      for (const std::string& id : s.samples) EXPECT_EQ(kind_of(id), kind_of(s.samples[0]));
    }
    EXPECT_LE(*sizes.rbegin(), to_size(2 * accumulation));
    EXPECT_LT(*sizes.begin(), to_size(2 * accumulation));
    EXPECT_TRUE(std::filesystem::exists(training_.path("out/my_lora.safetensors")));

    MemoryPolicy lean = *find_policy("recompute");
    lean.samples_per_pass = 1;
    EXPECT_EQ(support::difference(support::read_trace(o.folder),
                                  support::read_trace(train(flags, lean).folder)),
              "");
  }
}

}  // namespace
}  // namespace ballast::train
