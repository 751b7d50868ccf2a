// Trained tensors that hold a NaN or an infinity without a sign of it in the loss.

#include <gtest/gtest.h>

#include <limits>

#include "nn/update.h"
#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/runner_tensors.h"
#include "train/trainer.h"

namespace ballast::train::value_check_test {
namespace {

using ::testing::HasSubstr;

struct Bad {
  std::int64_t step = 0;  // after whose update the value is there
  float value = 0;
};

// Two tensors and a loss that knows nothing of them.
class BlindTrainee final : public TrainingTask {
 public:
  explicit BlindTrainee(Bad bad) : bad_(bad) {}

  void record(ProgramSet& set) override {
    {
      ProgramBuilder pb(set, "init_state");
      for (const char* name : {"first", "second"}) {
        UpdatedTensor t;
        t.name = name;
        t.value = pb.persistent(name, {3, 1000}, DType::f32, Role::weights);
        t.gradient = pb.persistent(t.name + ".grad", {3, 1000}, DType::f32, Role::gradient);
        trained_.push_back(std::move(t));
      }
      norm_ = pb.persistent("norm", {1}, DType::f32, Role::output, Tier::host);
      factor_ = pb.persistent("factor", {1}, DType::f32, Role::output);
    }
    ProgramBuilder values(set, kValueNorm);
    record_value_norm(values, trained_, factor_, norm_);
  }
  void load(Runner& runner) override {
    const std::vector<std::byte> zeros(runner.spec(trained_[0].value).bytes);
    for (const UpdatedTensor& t : trained_) runner.write(t.value, zeros);
  }
  void start(Runner&, const FeedPosition&) override {}
  std::int64_t epoch() const override { return 1; }
  bool last_of_epoch() const override { return false; }
  std::vector<std::string> sample_ids() const override { return {"sample"}; }
  void gradients(Runner&, std::int64_t, StepRecord& record) override {
    record.loss = record.grad_norm = 1;
  }
  void update(Runner& runner, StepRecord& record) override {
    if (record.step != bad_.step) return;
    runner.write_part(trained_[1].value, 2222 * sizeof(float),
                      std::as_bytes(std::span(&bad_.value, 1)));
  }
  void next_step() override {}
  std::vector<UpdatedTensor> trained() const override { return trained_; }
  Buffer grad_norm() const override { return norm_; }
  std::string file_name() const override { return "model.safetensors"; }
  std::vector<std::string> save(Runner&, const SaveTarget& target, std::int64_t) override {
    const std::string path = target.folder + "/" + target.file_name;
    std::ofstream(path) << "model";
    return {path};
  }

 private:
  Bad bad_;
  std::vector<UpdatedTensor> trained_;
  Buffer norm_, factor_;
};

class ValueCheck : public ::testing::Test {
 protected:
  TrainOutcome run(Bad bad, std::int64_t steps, const Cadence& checkpoint,
                   const Cadence& save = {}) {
    RunSetup setup;
    setup.config.output_dir = dir_.path();
    setup.config.checkpoint = checkpoint;
    setup.config.save = save;
    setup.config.keep_checkpoints = 100;
    setup.total_steps = steps;
    setup.in_output_dir = true;
    setup.backend = {.device = support::test_device(), .threads = 1};
    ProgramSet set;
    set.backend = setup.backend;
    BlindTrainee(bad).record(set);
    const MemoryPlan plan = plan_memory(set);
    setup.device = plan.peak_of(Tier::device);
    setup.host = plan.peak_of(Tier::host);
    TrainOptions options;
    options.handle_signals = false;
    return train(std::move(setup), std::make_unique<BlindTrainee>(bad), options);
  }
  std::int64_t newest() const {
    const auto found = find_checkpoint(dir_.path(), transformers_names()).found;
    return found ? found->state.step : -1;
  }
  static Cadence every(std::int64_t steps) {
    Cadence c;
    c.steps = steps;
    return c;
  }

  const test::TempDir dir_;
};

TEST_F(ValueCheck, EndsTheRunAtTheNextHundredthStep) {
  const auto error = test::error_of([&] {
    run({.step = 130, .value = std::numeric_limits<float>::quiet_NaN()}, 400, every(1000));
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), HasSubstr("after 200 steps the trained tensor second holds nan at "
                                       "element 2222"));
  EXPECT_THAT(error->what(), HasSubstr("there is no checkpoint yet"));
  EXPECT_EQ(newest(), -1);
}

TEST_F(ValueCheck, ABadTensorIsNeverSavedOverAGoodOne) {
  const auto error = test::error_of(
      [&] { run({.step = 51, .value = -std::numeric_limits<float>::infinity()}, 90, every(20)); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("after 60 steps the trained tensor second holds -inf"));
  EXPECT_THAT(error->what(), HasSubstr("the last good checkpoint is " + dir_.path()));
  EXPECT_THAT(error->what(), HasSubstr("checkpoint-40"));
  EXPECT_THAT(error->advice().at(0).change, HasSubstr("lower learning rate"));
  EXPECT_EQ(newest(), 40);
}

TEST_F(ValueCheck, ABadModelIsNotSaved) {
  const auto error = test::error_of([&] {
    run({.step = 51, .value = std::numeric_limits<float>::infinity()}, 90, every(1000), every(30));
  });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("after 60 steps the trained tensor second holds inf"));
}

TEST_F(ValueCheck, LargeNumbersAreNoReasonToStop) {
  EXPECT_EQ(run({.step = 10, .value = 3e38f}, 200, every(1000)).steps, 200);
  EXPECT_EQ(newest(), 200);
}

}  // namespace
}  // namespace ballast::train::value_check_test
