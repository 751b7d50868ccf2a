#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>

#include "ballast/ballast.h"
#include "tests/support/tiny_training.h"

namespace ballast {
namespace {

using support::TinyTraining;

struct Clips {
  Clips() { files.add_clips(4, {4, 2, 8, 8}); }
  std::string config(const std::string& extra = "epochs = 2") { return files.write_config(extra); }
  TinyTraining files;
};

TEST(TrainCall, TellsEveryStep) {
  Clips s;
  std::vector<v1::TrainStep> steps;
  std::optional<v1::Plan> plan;
  const v1::TrainResult r =
      v1::train(s.config(), {.planned = [&](const v1::Plan& p) { plan = p; },
                             .step = [&](const v1::TrainStep& t) { steps.push_back(t); }});
  EXPECT_EQ(r.steps, 8);
  EXPECT_FALSE(r.stopped);
  EXPECT_TRUE(std::filesystem::exists(r.report));
  ASSERT_EQ(steps.size(), 8u);
  EXPECT_EQ(steps.back().step, 8);
  EXPECT_EQ(steps.back().total_steps, 8);
  EXPECT_EQ(steps.back().epoch, 2);
  EXPECT_EQ(steps.back().loss, r.last_loss);
  ASSERT_TRUE(plan);
  EXPECT_EQ(steps.back().measured.device, plan->planned.device);
}

TEST(TrainCall, StopsWhenAskedAndGoesOn) {
  Clips s;
  int steps = 0;
  const v1::TrainResult first = v1::train(
      s.config(),
      {.step = [&](const v1::TrainStep&) { ++steps; }, .stop = [&] { return steps == 3; }});
  EXPECT_TRUE(first.stopped);
  EXPECT_EQ(first.steps, 3);
  const v1::TrainResult rest = v1::train(s.config(), {}, {"--resume"});
  EXPECT_FALSE(rest.stopped);
  EXPECT_EQ(rest.steps, 8);
  EXPECT_EQ(rest.folder, first.folder);
}

TEST(TrainCall, GivesARefusalAsAnError) {
  Clips s;
  const std::string config =
      s.files.write_config("epochs = 1",
                           "[adapter]\ntype = 'lora'\nrank = 4\n[optimizer]\n"
                           "type = 'adamw'\nlr = 1e-3\n[memory]\nram = '8MB'\n");
  bool asked = false;
  try {
    v1::train(config, {.planned = [&](const v1::Plan& p) { asked = !p.fits; }});
    FAIL() << "it fits";
  } catch (const v1::Error& e) {
    EXPECT_EQ(e.code(), v1::ErrorCode::refused);
    EXPECT_FALSE(e.advice().empty());
  }
  EXPECT_TRUE(asked);
}

TEST(TrainCall, LetsExceptionsOfCallbacksThrough) {
  Clips s;
  const auto stop = [](const v1::TrainStep&) { throw std::out_of_range("mine"); };
  EXPECT_THROW(v1::train(s.config(), {.step = stop}), std::out_of_range);
}

TEST(TrainCall, NamesAMistakeInTheConfiguration) {
  Clips s;
  try {
    v1::train(s.config("epochs = 1\nepoch = 2"));
    FAIL() << "accepted";
  } catch (const v1::Error& e) {
    EXPECT_EQ(e.code(), v1::ErrorCode::input);
    EXPECT_THAT(e.what(), testing::HasSubstr("epochs"));
  }
}

}  // namespace
}  // namespace ballast
