#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_text_model.h"
#include "train/predicted_texts.h"
#include "train/seq2seq_trainer.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct Trained {
  TrainOutcome outcome;
  std::vector<double> losses;  // by step
};

class Seq2SeqTraining : public ::testing::Test {
 protected:
  Seq2SeqTraining() {
    // A number's name to the next one's; lengths differ.
    std::string lines;
    for (std::size_t i = 0; i < 9; ++i) {
      const auto& w = support::tiny_words();
      std::string more;
      for (std::size_t k = 0; k < i % 3; ++k) more += " and " + w[10 + k];
      lines += fmt::format("{{\"input\": \"count {}{}\", \"output\": \"{}{}\"}}\n", w[i], more,
                           w[i + 1], more);
    }
    texts_ = dir_.write("train.jsonl", lines);
  }

  Words words(const std::string& output, Words more = {}) const {
    Words all = {"--model_name_or_path",
                 model_,
                 "--train_file",
                 texts_,
                 "--output_dir",
                 dir_.path(output),
                 "--device",
                 "cpu",
                 "--learning_rate",
                 "3e-3"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Seq2SeqRun prepared(const Words& w) const {
    const Seq2SeqConfig c = read_seq2seq_config(w);
    return prepare_seq2seq(c, this_machine({.device = DeviceChoice::cpu, .threads = 2}));
  }
  // stop_after: a request to stop comes with that step.
  Trained train(const Words& w, std::int64_t stop_after = 0) const {
    Seq2SeqRun run = prepared(w);
    auto outcome = t5::fit(run.request);
    Trained done;
    std::int64_t step = 0;
    done.outcome = train_seq2seq(std::move(run), std::get<t5::PlannedRun>(std::move(outcome)),
                                 {.command = "test",
                                  .handle_signals = false,
                                  .on_step =
                                      [&](const StepRecord& r) {
                                        step = r.step;
                                        done.losses.push_back(r.loss);
                                      },
                                  .stop = [&] { return step == stop_after; }});
    return done;
  }
  std::string model_in(const std::string& output) const {
    return test::read_whole(dir_.path(output) + "/model.safetensors");
  }

  const test::TempDir dir_;
  const std::string model_ = support::write_text_model(dir_, "model");
  std::string texts_;
};

TEST_F(Seq2SeqTraining, LearnsAndLeavesAFolderThatGenerates) {
  const Trained done = train(words(
      "out", {"--max_steps", "120", "--dropout", "0", "--validation_file", texts_, "--eval_steps",
              "60", "--per_device_train_batch_size", "5", "--save_steps", "50",
              "--save_total_limit", "1", "--group_by_length", "--lr_scheduler_type", "constant"}));
  EXPECT_EQ(done.losses.size(), 120u);
  EXPECT_LT(done.losses.back(), 0.1 * done.losses.front());
  // Sanitizers have memory of their own.
  if (!allocation_hook::missing()) {
    EXPECT_LE(done.outcome.measured, done.outcome.planned);
  }
  const std::string out = dir_.path("out");
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "model.safetensors", "run_log.jsonl", "report.html",
                           "checkpoint-120/model.safetensors", "checkpoint-120/config.json"}) {
    EXPECT_TRUE(fs::exists(out + "/" + name)) << name;
  }
  EXPECT_FALSE(fs::exists(out + "/checkpoint-50")) << "rotated away";
  EXPECT_THAT(test::read_whole(out + "/run_log.jsonl"), ::testing::HasSubstr("\"eval\""));
  for (const char* folder : {"out", "out/checkpoint-120"}) {
    const PredictionJob job = {.model = dir_.path(folder),
                               .output = dir_.path("texts.jsonl"),
                               .samples = 0,
                               .options = {.max_new_tokens = 8},
                               .machine = {.threads = 1}};
    const Predictions p = predict_texts(prepared(words("out", {"--resume"})).train->cache, job);
    EXPECT_EQ(p.count, 9);
    EXPECT_GE(p.exact, 8) << folder;
  }
}

// Dropout, order, schedule, moments, early stopping: all of it comes back.
TEST_F(Seq2SeqTraining, GoesOnFromACheckpointToTheSameBits) {
  const Words how = {
      "--epochs",       "4", "--batch_size", "2", "--gradient_accumulation_steps", "2",
      "--warmup_steps", "3", "--save_steps", "5", "--early_stopping_patience",     "9"};
  const auto with = [&](const std::string& output, Words more) {
    more.insert(more.begin(), how.begin(), how.end());
    return words(output, more);
  };
  const Trained whole = train(with("whole", {}));
  EXPECT_EQ(whole.losses.size(), 12u);
  const Trained first = train(with("parts", {}), 7);
  EXPECT_TRUE(first.outcome.stopped);
  EXPECT_FALSE(fs::exists(dir_.path("parts/model.safetensors")));
  EXPECT_FAILS(prepared(with("parts", {})), ErrorCode::usage, "checkpoints of a run");
  EXPECT_FAILS(train(with("parts", {"--resume", "--seed", "1"})), ErrorCode::input, "seed 42");
  const Trained rest = train(with("parts", {"--resume_from_checkpoint"}));
  EXPECT_EQ(model_in("parts"), model_in("whole"));
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
  EXPECT_EQ(losses, whole.losses);
  // From an older one, whose folder stands for the model as well.
  Words older = with("parts", {"--resume_from_checkpoint", dir_.path("parts/checkpoint-7")});
  older.erase(older.begin(), older.begin() + 2);
  const Trained again = train(older);
  EXPECT_EQ(again.losses.size(), 5u);
  EXPECT_EQ(model_in("parts"), model_in("whole"));
  train(with("parts", {"--overwrite_output_dir", "--max_steps", "1"}));
  EXPECT_TRUE(fs::exists(dir_.path("parts/checkpoint-1")));
  EXPECT_FALSE(fs::exists(dir_.path("parts/checkpoint-12"))) << "of another run";
}

TEST_F(Seq2SeqTraining, LossesDoNotDependOnPadding) {
  const Words how = {"--max_steps", "1", "--dropout", "0", "--batch_size", "3"};
  const auto loss = [&](const std::string& output, Words more) {
    more.insert(more.begin(), how.begin(), how.end());
    return train(words(output, more)).losses.at(0);
  };
  const double longest = loss("a", {});
  EXPECT_EQ(loss("b", {"--pad_to_max_length", "true", "--pad_to_multiple_of", "8"}), longest);
  EXPECT_EQ(loss("c", {"--policy", "recompute"}), longest);
}

TEST_F(Seq2SeqTraining, AccumulatedMicroBatchesAreOneBatch) {
  const auto losses = [&](const std::string& output, const char* batch, const char* steps,
                          Words more = {}) {
    more.insert(more.end(), {"--dropout", "0", "--max_steps", "4", "--batch_size", batch,
                             "--gradient_accumulation_steps", steps});
    return train(words(output, more)).losses;
  };
  const auto one = losses("a", "8", "1"), two = losses("b", "4", "2"),
             shared = losses("c", "4", "2", {"--micro_batches_per_visit", "2"});
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i], one[i], 2e-4 * one[i]);
    EXPECT_NEAR(shared[i], one[i], 2e-4 * one[i]);
  }
}

TEST_F(Seq2SeqTraining, EndsWhenTheLossGetsNoBetter) {
  const Trained done =
      train(words("out", {"--epochs", "50", "--early_stopping_patience", "2",
                          "--early_stopping_threshold", "100", "--validation_file", texts_}));
  EXPECT_EQ(done.losses.size(), 6u) << "two steps an epoch, the first evaluation is the best";
  EXPECT_FALSE(done.outcome.stopped);
  EXPECT_TRUE(fs::exists(dir_.path("out/model.safetensors")));
}

TEST_F(Seq2SeqTraining, RefusesWhatDoesNotFitWithAdvice) {
  const Seq2SeqRun run = prepared(words("out", {"--gpu", "20KB"}));
  const auto outcome = t5::fit(run.request);
  const auto* refusal = std::get_if<Refusal>(&outcome);
  ASSERT_NE(refusal, nullptr);
  EXPECT_FALSE(refusal->shortages.empty());
  const auto changes = t5::try_changes(run.request, *refusal, possible_changes(run, *refusal));
  ASSERT_FALSE(changes.empty());
  EXPECT_TRUE(changes[0].fits) << changes[0].text;
  EXPECT_FALSE(fs::exists(dir_.path("out/run_log.jsonl")));
}

// Every optimizer and form of weights that can be asked for.
TEST_F(Seq2SeqTraining, LearnsWithEveryOptimizer) {
  const std::vector<Words> kinds = {
      {"--optim", "adafactor"},
      {"--optim", "adamw_bnb_8bit", "--weights", "bf16"},
      {"--weights", "bf16", "--rounding", "kahan", "--state_dtype", "bf16"},
      {"--weights", "bf16", "--rounding", "stochastic", "--gradient_dtype", "bf16"}};
  int n = 0;
  for (Words more : kinds) {
    const std::string name = fmt::format("out{}", n++);
    more.insert(more.end(), {"--max_steps", "25", "--dropout", "0"});
    const Trained done = train(words(name, more));
    EXPECT_LT(done.losses.back(), 0.8 * done.losses.front()) << more[1];
  }
}

}  // namespace
}  // namespace ballast::train
