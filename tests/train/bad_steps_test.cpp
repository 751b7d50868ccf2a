// Steps whose loss or gradient is not a number.

#include <gmock/gmock.h>

#include "core/to_size.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_training.h"
#include "tests/support/trained_run.h"
#include "train/checkpoint/checkpoint.h"
#include "train/run/run_folder.h"

namespace ballast::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class BadSteps : public ::testing::Test {
 protected:
  BadSteps() : training_(support::trainable_config(1)) {
    const data::LatentShape shape = {4, 1, 4, 4};
    training_.add_clips(3, shape, "good");
    const std::vector<float> latent(to_size(shape.elements()), 3e38f);
    const std::vector<float> text(to_size(training_.config().text_dim), 1.0f);
    data::write_cached_sample(
        training_.path("clips"), "huge", {.shape = shape, .latent = latent},
        {.tokens = 1, .dim = training_.config().text_dim, .rows = text, .caption = "huge"},
        {.durability = Durability::process});
  }
  std::string config(const char* on_nan) {
    return training_.write_config(
        fmt::format("epochs = 2\non_nan = '{}'\nkeep_checkpoints = 100\n"
                    "checkpoint_every_n_steps = 1",
                    on_nan));
  }
  static std::string state_at(const std::string& folder, std::int64_t step) {
    return test::read_whole(
        fmt::format("{}/checkpoints/{}/{}", folder, checkpoint_name(step), kStateFile));
  }

  support::TinyTraining training_;
};

TEST_F(BadSteps, AreSkippedAndLeaveTheWeightsAlone) {
  const TrainOutcome o = support::train_in_process(config("skip"));
  EXPECT_EQ(o.steps, 8);
  const RunHistory h = read_run_log(o.folder + "/" + std::string(kRunLogFile));
  int bad = 0;
  for (const StepRecord& s : h.steps) {
    const bool huge = s.samples.at(0).ends_with("huge");
    const bool number = std::isfinite(s.loss) && std::isfinite(s.grad_norm);
    EXPECT_NE(huge, number) << "step " << s.step;
    if (s.step > 1) {
      EXPECT_EQ(state_at(o.folder, s.step) == state_at(o.folder, s.step - 1), huge);
    }
    bad += huge;
  }
  EXPECT_EQ(bad, 2);  // one in each epoch
  int named = 0;
  for (const EventRecord& e : h.events) {
    if (e.event != "nan") continue;
    ++named;
    EXPECT_THAT(e.text, HasSubstr("huge"));
    EXPECT_THAT(e.text, HasSubstr("skipped, weights unchanged"));
  }
  EXPECT_EQ(named, 2);
  EXPECT_TRUE(std::isfinite(o.last_loss));
}

TEST_F(BadSteps, StopARunThatSaysSoAndNameTheClip) {
  const std::string path = training_.write_config("epochs = 2\non_nan = 'stop'");
  const auto error = test::error_of([&] { support::train_in_process(path); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), HasSubstr("huge"));
  EXPECT_THAT(error->what(), HasSubstr("the weights were not changed"));

  // What was trained until then is there, although no checkpoint was due yet.
  const std::string folder = training_.path("out/") + runs_in(training_.path("out")).at(0);
  const RunHistory h = read_run_log(folder + "/" + std::string(kRunLogFile));
  ASSERT_FALSE(h.events.empty());
  EXPECT_EQ(h.events.back().event, "failed");
  EXPECT_THAT(h.events.back().text, HasSubstr("huge"));
  const auto found = find_checkpoint(folder).found;
  ASSERT_TRUE(found);
  EXPECT_EQ(found->state.step, std::ssize(h.steps));

  // With the other choice the run goes on, as if it had been made at first.
  const std::string skip = config("skip");
  const support::RunTrace whole = support::trace_of(skip);
  const support::RunTrace resumed =
      support::trace_of(skip, {"resumed", std::nullopt, 2, {{"resume", {folder}, "--resume"}}});
  EXPECT_EQ(support::difference(whole, resumed), "");
}

// A rate that makes infinities of the weights at once: the tensor is named, not the clip, and no
// checkpoint holds it.
TEST_F(BadSteps, AreNotBlamedForWeightsThatAreNoNumbers) {
  const std::string path =
      training_.write_config("epochs = 2\non_nan = 'skip'\ncheckpoint_every_n_steps = 1",
                             "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                             "[optimizer]\ntype = 'adamw'\nlr = 1e30\nweight_decay = 1e10\n");
  const auto error = test::error_of([&] { support::train_in_process(path); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), HasSubstr("steps the trained tensor"));
  EXPECT_THAT(error->what(), HasSubstr("lora_A"));
  EXPECT_THAT(error->what(), Not(HasSubstr("huge")));
  const std::string folder = training_.path("out/") + runs_in(training_.path("out")).at(0);
  const auto found = find_checkpoint(folder).found;  // of the clip, if it came first
  EXPECT_THAT(error->what(), HasSubstr(found ? found->folder : "there is no checkpoint yet"));
}

}  // namespace
}  // namespace ballast::train
