#include <algorithm>
#include <cmath>
#include <filesystem>

#include "io/json_reader.h"
#include "models/t5/lora_file.h"
#include "plan/profile.h"
#include "tests/support/allocation_hook.h"
#include "tests/support/errors.h"
#include "tests/support/padded_products.h"
#include "tests/support/tiny_text_model.h"
#include "train/recipes/predicted_texts.h"
#include "train/recipes/seq2seq_run.h"

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
    auto outcome = fit::find_plan(run.request);
    Trained done;
    std::int64_t step = 0;
    done.outcome = train_seq2seq(std::move(run), std::get<fit::PlannedRun>(std::move(outcome)),
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

// The note's job goes by the model's name, which a checkpoint does not have.
TEST_F(Seq2SeqTraining, ACheckpointThatStandsForItsModelKeepsTheRate) {
  const std::string model = support::write_text_model(dir_, "flan-t5-xl");
  const auto with = [&](Words more) {
    more.insert(more.end(), {"--model-output", dir_.path("out"), "--train-file", texts_,
                             "--max-steps", "2", "--save-steps", "1"});
    return more;
  };
  train(with({"--pretrained-model", model}));
  const Seq2SeqRun rest =
      prepared(with({"--resume-from-checkpoint", dir_.path("out/checkpoint-1")}));
  EXPECT_EQ(rest.schedule.learning_rate, 3e-4);
}

TEST_F(Seq2SeqTraining, AdaptersTrainAndGoOnToTheSameBits) {
  const Words how = {
      "--max_steps",  "9", "--batch_size",   "3",   "--save_steps",   "4", "--lora_rank", "4",
      "--lora_alpha", "8", "--lora_dropout", "0.2", "--lora_targets", "q", "v",           "wi"};
  const auto with = [&](const std::string& output, Words more) {
    more.insert(more.begin(), how.begin(), how.end());
    return words(output, more);
  };
  const auto adapter_in = [&](const std::string& output) {
    return test::read_whole(dir_.path(output) + "/adapter_model.safetensors");
  };
  const Trained whole = train(with("whole", {}));
  const Trained first = train(with("parts", {}), 5);
  EXPECT_FALSE(fs::exists(dir_.path("parts/adapter_model.safetensors")));
  EXPECT_FAILS(prepared(words("parts", {"--resume"})), ErrorCode::input, "an adapter");
  // The checkpoint knows its model.
  Words rest = with("parts", {"--resume_from_checkpoint"});
  rest.erase(rest.begin(), rest.begin() + 2);
  std::vector<double> losses = first.losses;
  for (const double loss : train(rest).losses) losses.push_back(loss);
  EXPECT_EQ(losses, whole.losses);
  EXPECT_EQ(adapter_in("parts"), adapter_in("whole"));
  // The plan says how many numbers that is.
  std::int64_t saved = 0;
  const WeightFiles file = WeightFiles::open(dir_.path("whole/adapter_model.safetensors"));
  for (const WeightTensor& t : file.tensors()) saved += t.entry->shape.elements();
  const PlanTitle title = title_of(prepared(with("other", {"--gradient_accumulation_steps", "4"})));
  EXPECT_EQ(title.sizes.parameters, saved);
  EXPECT_EQ(title.sizes.batch, 12);
  for (const char* name :
       {"whole/adapter_config.json", "whole/tokenizer.json",
        "whole/checkpoint-9/adapter_config.json", "whole/checkpoint-9/adapter_model.safetensors"}) {
    EXPECT_TRUE(fs::exists(dir_.path(name))) << name;
  }
  EXPECT_FALSE(fs::exists(dir_.path("whole/model.safetensors")));
  const t5::AdapterConfig config = t5::read_adapter_config(dir_.path("whole"));
  EXPECT_EQ(config.base_model, fs::absolute(model_).string());
  EXPECT_THAT(config.targets, ::testing::ElementsAre("q", "v", "wi_0", "wi_1"));
  EXPECT_EQ(config.alpha, 8);
}

TEST_F(Seq2SeqTraining, AdaptersLearnAndAreUsedToWrite) {
  const Trained done =
      train(words("out", {"--max_steps", "60", "--dropout", "0", "--lora_rank", "8",
                          "--learning_rate", "1e-2", "--lr_scheduler_type", "constant"}));
  EXPECT_LT(done.losses.back(), 0.5 * done.losses.front());
  const auto predicted = [&](const infer::AppliedAdapter& adapter) {
    return predict_texts(prepared(words("other")).train->cache, {.model = model_,
                                                                 .adapter = adapter,
                                                                 .output = dir_.path("t.jsonl"),
                                                                 .samples = 0,
                                                                 .options = {.max_new_tokens = 8},
                                                                 .machine = {.threads = 1}});
  };
  const Predictions with = predicted({dir_.path("out")});
  EXPECT_GT(with.rouge.rouge1, predicted({}).rouge.rouge1 + 0.2);
}

// The higher, the better, is asked of a loss that falls: the first evaluation is the best.
TEST_F(Seq2SeqTraining, SavesTheModelOfTheBestEvaluation) {
  const Trained done = train(
      words("out", {"--max_steps", "9", "--validation_file", texts_, "--eval_steps", "3",
                    "--save_steps", "3", "--save_total_limit", "1", "--load_best_model_at_end",
                    "--metric_for_best_model", "eval_loss", "--greater_is_better", "True",
                    "--predict_with_generate", "--generation_max_length", "4"}));
  const auto table = [&](const std::string& folder) {
    const WeightFiles file = WeightFiles::open(dir_.path(folder) + "/model.safetensors");
    const WeightTensor& t = file.get("shared.weight");
    std::vector<std::byte> bytes(t.entry->bytes);
    file.read(t, bytes);
    return bytes;
  };
  EXPECT_EQ(table("out"), table("out/checkpoint-3")) << "not rotated away";
  EXPECT_NE(table("out"), table("out/checkpoint-9"));
  EXPECT_FALSE(fs::exists(dir_.path("out/checkpoint-6")));
  for (const char* folder : {"out", "out/checkpoint-9"}) {
    const std::string text = test::read_whole(dir_.path(folder) + "/trainer_state.json");
    for (const char* part : {"\"global_step\": 9", "\"best_global_step\": 3", "checkpoint-3\"",
                             "\"eval_rougeLsum\"", "\"learning_rate\"", "\"epoch\": 4.5"}) {
      EXPECT_THAT(text, ::testing::HasSubstr(part)) << folder;
    }
    JsonReader json({.text = text, .path = folder, .rule = "test"});
    json.skip();
    json.finish();
  }
  if (!allocation_hook::missing()) {
    EXPECT_LE(done.outcome.measured, done.outcome.planned);
  }
}

TEST_F(Seq2SeqTraining, LossesDoNotDependOnPadding) {
  const Words how = {"--max_steps", "1", "--dropout", "0", "--batch_size", "3"};
  const auto loss = [&](const std::string& output, Words more) {
    more.insert(more.begin(), how.begin(), how.end());
    return train(words(output, more)).losses.at(0);
  };
  const double longest = loss("a", {});
  const double padded = loss("b", {"--pad_to_max_length", "true", "--pad_to_multiple_of", "8"});
  EXPECT_NEAR(padded, longest, test::padding_keeps_kernels() ? 0 : 1e-6 * longest);
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

// The mean of micro-batches' means is not that over all tokens, since their lengths differ.
TEST_F(Seq2SeqTraining, MicroBatchesThatShareAVisitKeepMeansOfTheirOwn) {
  const auto losses = [&](const std::string& output, const char* mean, const char* visit) {
    return train(words(output, {"--dropout", "0.1", "--max_steps", "3", "--batch_size", "2",
                                "--gradient_accumulation_steps", "3", "--loss_mean", mean,
                                "--micro_batches_per_visit", visit}))
        .losses;
  };
  const auto alone = losses("a", "micro_batches", "1"), shared = losses("b", "micro_batches", "3"),
             tokens = losses("c", "tokens", "3");
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_NEAR(shared[i], alone[i], 1e-5 * alone[i]);
  }
  EXPECT_GT(std::abs(tokens[0] - alone[0]), 1e-3 * alone[0]);
}

// On a GPU with a slow link; nothing is loaded or run.
TEST_F(Seq2SeqTraining, StreamedBlocksAreBroughtOnceForAllMicroBatchesOfAStep) {
  MachineProfile profile = *find_profile("h200");
  profile.upload_bandwidth = profile.download_bandwidth = 1e4;
  const auto planned = [&](const Words& more, fit::Choice offloading) {
    Words all = words("out", more);
    all.insert(all.end(), {"--gradient_accumulation_steps", "6", "--batch_size", "1"});
    Seq2SeqRun run = prepare_seq2seq(read_seq2seq_config(all), target_of(profile, {}));
    run.request.switches.offloading = offloading;
    const double seconds = seconds_per_step(run, std::get<fit::PlannedRun>(plan_seq2seq(run)));
    return std::pair(std::move(run), seconds);
  };
  const auto [shared, seconds] = planned({}, fit::Choice::on);
  EXPECT_EQ(shared.micro_batches_per_visit, 6);
  EXPECT_EQ(shared.runs_per_step(), 1);
  EXPECT_FALSE(t5::job_of(shared.request).seq2seq.accumulates);
  ASSERT_FALSE(shared.notes.empty());
  EXPECT_NE(shared.notes.back().find("6 micro-batches share a visit"), std::string::npos);
  const auto [alone, longer] = planned({"--micro_batches_per_visit", "1"}, fit::Choice::on);
  EXPECT_EQ(alone.runs_per_step(), 6);
  EXPECT_LT(seconds, 0.7 * longer);
  EXPECT_EQ(planned({}, fit::Choice::off).first.micro_batches_per_visit, 1)
      << "weights that stay need no sharing";
}

TEST_F(Seq2SeqTraining, EndsWhenTheLossGetsNoBetter) {
  const Trained done =
      train(words("out", {"--epochs", "50", "--early_stopping_patience", "2",
                          "--early_stopping_threshold", "100", "--validation_file", texts_}));
  EXPECT_EQ(done.losses.size(), 6u) << "two steps an epoch, the first evaluation is the best";
  EXPECT_FALSE(done.outcome.stopped);
  EXPECT_TRUE(fs::exists(dir_.path("out/model.safetensors")));
}

TEST_F(Seq2SeqTraining, AMissingFileOfTextsIsNamed) {
  for (const std::string& file : {dir_.path("nowhere.jsonl"), model_}) {  // a folder is no file
    EXPECT_FAILS(prepared(words("out", {"--validation_file", file})), ErrorCode::input, file);
  }
}

TEST_F(Seq2SeqTraining, ACheckpointOfTransformersIsAModelToBeginWith) {
  const auto error = test::error_of([&] {
    prepared(words("out", {"--resume_from_checkpoint", model_}));
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_EQ(error->advice()[0].change, "--model_name_or_path " + model_);
}

TEST_F(Seq2SeqTraining, TheModelItBeginsWithIsNotReplaced) {
  EXPECT_FAILS(prepared(words("model")), ErrorCode::usage, "would replace");
  EXPECT_FALSE(fs::exists(dir_.path("model/token_cache")));
}

TEST_F(Seq2SeqTraining, RefusesWhatDoesNotFitWithAdvice) {
  const Seq2SeqRun run = prepared(words("out", {"--gpu", "20KB"}));
  const auto outcome = fit::find_plan(run.request);
  const auto* refusal = std::get_if<Refusal>(&outcome);
  ASSERT_NE(refusal, nullptr);
  EXPECT_FALSE(refusal->shortages.empty());
  const auto changes = fit::try_changes(run.request, *refusal, possible_changes(run, *refusal));
  ASSERT_FALSE(changes.empty());
  EXPECT_TRUE(changes[0].fits) << changes[0].text;
  EXPECT_TRUE(std::ranges::any_of(
      changes, [](const PlannedChange& c) { return c.text.starts_with("--lora_rank"); }));
  // Fewer samples at a time are as many in a step.
  for (const PlannedChange& c : changes) {
    if (c.text.starts_with("--batch-size")) {
      EXPECT_GT(c.step_factor, 1) << c.text;
    }
  }
  EXPECT_FALSE(fs::exists(dir_.path("out/run_log.jsonl")));
}

// As in transformers: constant has no warm-up, constant_with_warmup has.
TEST_F(Seq2SeqTraining, AConstantScheduleIgnoresWarmupWithANote) {
  for (const char* flag : {"--warmup_steps", "--warmup_ratio"}) {
    const std::string value = std::string(flag) == "--warmup_steps" ? "3" : "0.5";
    const Seq2SeqRun run = prepared(words("out", {"--lr_scheduler_type", "constant", flag, value}));
    EXPECT_EQ(learning_rate(run.schedule, 0), 3e-3);
    EXPECT_TRUE(std::ranges::any_of(run.notes, [](const std::string& n) {
      return n.starts_with("the schedule constant has no warm-up, as in transformers");
    })) << flag;
  }
  const Seq2SeqRun with = prepared(
      words("out", {"--lr_scheduler_type", "constant_with_warmup", "--warmup_steps", "3"}));
  EXPECT_DOUBLE_EQ(learning_rate(with.schedule, 1), 1e-3);
  EXPECT_TRUE(with.notes.empty());
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

// Tables of more than 4096 numbers, so that 8-bit moments are possible.
class EightBitTraining : public Seq2SeqTraining {
 protected:
  EightBitTraining() {
    t5::Config c = support::tiny_t5();
    c.vocabulary = 200;
    large_ = support::write_text_model(dir_, "large", c);
  }
  Words with(const std::string& output, Words more) const {
    Words all = words(output, {"--optim", "adamw_bnb_8bit", "--max_steps", "6", "--save_steps", "3",
                               "--batch_size", "3"});
    all[1] = large_;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // bits: of a version that wrote checkpoints otherwise.
  Trained train_with(const Words& w, std::optional<MomentBits> bits, std::int64_t stop_after = 0) {
    Seq2SeqRun run = prepared(w);
    if (bits) t5::job_of(run.request).seq2seq.embedding_moments = *bits;
    form_ = t5::job_of(run.request).seq2seq.embedding_moments;
    notes_ = run.notes;
    auto outcome = fit::find_plan(run.request);
    Trained done;
    std::int64_t step = 0;
    done.outcome = train_seq2seq(std::move(run), std::get<fit::PlannedRun>(std::move(outcome)),
                                 {.command = "test",
                                  .handle_signals = false,
                                  .on_step = [&](const StepRecord& r) { step = r.step; },
                                  .stop = [&] { return step == stop_after; }});
    return done;
  }
  std::string moment_dtype(const std::string& checkpoint, const std::string& tensor) const {
    const auto file = SafetensorsFile::open(dir_.path(checkpoint) + "/state.safetensors");
    return fmt::format("{}", file.find(tensor + ".m")->dtype);
  }

  std::string large_;
  MomentBits form_ = MomentBits::by_size;
  std::vector<std::string> notes_;
};

TEST_F(EightBitTraining, CheckpointsHave32BitMomentsOfTheTable) {
  train_with(with("out", {}), std::nullopt);
  EXPECT_EQ(moment_dtype("out/checkpoint-6", "shared.weight"), "F32");
  EXPECT_EQ(moment_dtype("out/checkpoint-6", "lm_head.weight"), "U8");
  EXPECT_THAT(test::read_whole(dir_.path("out/report.html")),
              ::testing::HasSubstr("32-bit moments of embeddings"));
}

// Also where the newest checkpoint is broken and an older one is gone on from.
TEST_F(EightBitTraining, ACheckpointWith8BitMomentsOfTheTableGoesOnWithThem) {
  train_with(with("whole", {}), MomentBits::by_size);
  train_with(with("parts", {}), MomentBits::by_size, 4);
  EXPECT_EQ(moment_dtype("parts/checkpoint-4", "shared.weight"), "U8");
  dir_.write("parts/checkpoint-4/state.safetensors", "cut");
  train_with(with("parts", {"--resume_from_checkpoint"}), std::nullopt);
  EXPECT_EQ(form_, MomentBits::by_size);
  EXPECT_THAT(notes_, ::testing::Contains(::testing::HasSubstr("8-bit moments")));
  EXPECT_EQ(moment_dtype("parts/checkpoint-6", "shared.weight"), "U8");
  EXPECT_EQ(model_in("parts"), model_in("whole"));
}

TEST_F(EightBitTraining, GoesOnWith32BitMomentsToTheSameBits) {
  train_with(with("whole", {}), std::nullopt);
  train_with(with("parts", {}), std::nullopt, 4);
  train_with(with("parts", {"--resume_from_checkpoint"}), std::nullopt);
  EXPECT_EQ(form_, MomentBits::always_32);
  EXPECT_EQ(model_in("parts"), model_in("whole"));
}

}  // namespace
}  // namespace ballast::train
