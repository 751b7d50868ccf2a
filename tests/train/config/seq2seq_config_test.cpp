#include "train/config/seq2seq_config.h"

#include <filesystem>

#include "io/weight_files.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_text_model.h"
#include "train/checkpoint/transformers_folder.h"

namespace ballast::train::seq2seq_config_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Seq2SeqConfig read(const Words& words) { return read_seq2seq_config(words); }

// As the FLAN-T5 job starts it.
TEST(Seq2SeqConfig, TakesTheNotesCommandWithItsDefaults) {
  const Words words = {"--pretrained-model",
                       "google/flan-t5-xl",
                       "--model-output",
                       "out",
                       "--epochs",
                       "5",
                       "--batch-size",
                       "8",
                       "--gradient-accumulation-steps",
                       "16",
                       "--dataloader-num-workers",
                       "0",
                       "--enable-mixed-precision",
                       "--disable-compilation",
                       "--alert-phone",
                       "+1555",
                       "--discord-webhook",
                       "https://chat.example/secret",
                       "--train-file",
                       "a.jsonl"};
  ASSERT_TRUE(is_seq2seq(words));
  const Seq2SeqConfig c = read(words);
  EXPECT_EQ(c.dialect, Seq2SeqDialect::fine_tune);
  EXPECT_EQ(c.model, "google/flan-t5-xl");
  EXPECT_EQ(c.output_dir, "out");
  EXPECT_EQ(c.epochs, 5);
  EXPECT_EQ(c.accumulation, 16);
  EXPECT_EQ(c.tokens.max_source, 256);
  EXPECT_EQ(c.tokens.max_target, 512);
  EXPECT_EQ(c.tokens.texts.min_quality, 0.6);
  EXPECT_EQ(c.weights, WeightFormat::bf16);
  EXPECT_EQ(c.optimizer.state_dtype, DType::bf16);
  EXPECT_EQ(c.optimizer.rounding, UpdateRounding::stochastic);
  EXPECT_EQ(c.optimizer.weight_decay, 0.01);
  EXPECT_EQ(c.loss_mean, LossMean::micro_batches);
  EXPECT_EQ(c.save_steps, 1000);
  EXPECT_EQ(c.patience, 3);
  EXPECT_EQ(c.webhook, "https://chat.example/secret");
  for (const std::string& note : c.notes) {
    EXPECT_THAT(note, ::testing::Not(HasSubstr("+1555")));
  }
  EXPECT_EQ(c.notes.size(), 4u) << "three flags without effect, and how weights are rounded";
  EXPECT_EQ(usual_rate("google/flan-t5-xl", 0), 3e-4);
  EXPECT_EQ(usual_rate("google/flan-t5-xxl", 0), 1e-4);
  EXPECT_EQ(usual_rate("google/flan-t5-base", 768), 5e-4);
  EXPECT_EQ(usual_rate("/model", 2048), 3e-4) << "a folder under another name";
  EXPECT_EQ(usual_rate("/model", 4096), 1e-4);
}

TEST(Seq2SeqConfig, TakesRunSummarizationsFlags) {
  const Seq2SeqConfig c = read({"--model_name_or_path",
                                "t5-small",
                                "--train_file",
                                "a.csv",
                                "--validation_file",
                                "b.csv",
                                "--text_column",
                                "article",
                                "--summary_column",
                                "highlights",
                                "--source_prefix",
                                "summarize: ",
                                "--output_dir",
                                "out",
                                "--num_train_epochs",
                                "3.0",
                                "--per_device_train_batch_size=4",
                                "--predict_with_generate",
                                "--num_beams",
                                "4",
                                "--pad_to_max_length",
                                "False",
                                "--do_train",
                                "--optim",
                                "adamw_bnb_8bit",
                                "--warmup_ratio",
                                "0.1",
                                "--save_total_limit",
                                "2",
                                "--eval_strategy",
                                "epoch"});
  EXPECT_EQ(c.dialect, Seq2SeqDialect::transformers);
  EXPECT_EQ(c.tokens.max_source, 1024);
  EXPECT_EQ(c.tokens.max_target, 128);
  EXPECT_EQ(c.tokens.texts.source_column, "article");
  EXPECT_EQ(c.tokens.texts.source_prefix, "summarize: ");
  EXPECT_EQ(c.epochs, 3);
  EXPECT_EQ(c.batch_size, 4);
  EXPECT_FALSE(c.pad_to_max);
  EXPECT_TRUE(c.predict);
  EXPECT_EQ(c.beams, 4);
  EXPECT_EQ(c.optimizer.kind, OptimizerKind::adamw8bit);
  EXPECT_EQ(c.optimizer.weight_decay, 0);
  EXPECT_EQ(c.max_grad_norm, 1);
  EXPECT_EQ(c.seed, 42u);
  EXPECT_EQ(c.save_steps, 500);
  EXPECT_EQ(c.eval_steps, 0);
  EXPECT_EQ(c.loss_mean, LossMean::tokens);
}

TEST(Seq2SeqConfig, TakesAdaptersAndTheBestModel) {
  const auto with = [](Words more) {
    more.insert(more.begin(), {"--model_name_or_path", "m", "--train_file", "a.csv", "--output_dir",
                               "out", "--validation_file", "b.csv"});
    return read(more);
  };
  EXPECT_FALSE(with({}).lora);
  const Seq2SeqConfig c = with({"--lora_r", "8", "--lora_targets", "q,v", "--lora_dropout", "0.1",
                                "--bf16", "--rounding", "kahan", "--metric_for_best_model",
                                "rougeL", "--predict_with_generate", "--load_best_model_at_end",
                                "True", "--label_smoothing_factor", "0", "--run_name", "x"});
  ASSERT_TRUE(c.lora);
  EXPECT_EQ(c.lora->rank, 8);
  EXPECT_EQ(c.lora->alpha, 8);
  EXPECT_EQ(c.lora->dropout, 0.1);
  EXPECT_THAT(c.lora->targets, ElementsAre("q", "v"));
  EXPECT_EQ(c.optimizer.rounding, UpdateRounding::nearest) << "adapters are f32";
  EXPECT_EQ(c.best_metric, EvalMetric::rouge_l);
  EXPECT_TRUE(c.greater_is_better);
  EXPECT_TRUE(c.load_best);
  EXPECT_FALSE(with({"--load_best_model_at_end"}).greater_is_better);
  EXPECT_EQ(with({"--lora_alpha", "32"}).lora->alpha, 32);
  EXPECT_FAILS(with({"--lora_targets", "lm_head"}), ErrorCode::usage, "wi_1, wo");
  EXPECT_FAILS(with({"--metric_for_best_model", "bleu"}), ErrorCode::usage, "rougeLsum");
  EXPECT_FAILS(with({"--metric_for_best_model", "rouge1"}), ErrorCode::usage, "text to score");
  EXPECT_FAILS(with({"--load_best_model_at_end", "--eval_strategy", "no"}), ErrorCode::usage,
               "evaluation");
  EXPECT_FAILS(with({"--label_smoothing_factor", "0.1"}), ErrorCode::usage, "not smoothed");
  const test::TempDir dir;
  const std::string file = dir.write("run.toml",
                                     "output_dir = 'o'\ntrain_file = 'a'\n[model]\ntype = 't5'\n"
                                     "path = 'm'\n[adapter]\ntype = 'lora'\nrank = 4\nalpha = 2\n"
                                     "targets = ['q', 'wo']\n");
  const Seq2SeqConfig t = read({file});
  ASSERT_TRUE(t.lora);
  EXPECT_EQ(t.lora->rank, 4);
  EXPECT_EQ(t.lora->alpha, 2);
  EXPECT_THAT(t.lora->targets, ElementsAre("q", "wo"));
}

TEST(Seq2SeqConfig, ReadsFilesAndLetsFlagsWin) {
  const test::TempDir dir;
  const std::string path = dir.write("run.toml",
                                     "output_dir = 'out'\n[model]\ntype = 't5'\npath = 'm'\n"
                                     "[data]\ntrain_file = 'a.jsonl'\nmax_source_length = 64\n"
                                     "[optimizer]\ntype = 'adafactor'\n[memory]\ngpu = '8GB'\n");
  const Words words = {path, "--max_source_length", "32", "--lr_scheduler_type", "constant"};
  ASSERT_TRUE(is_seq2seq(words));
  const Seq2SeqConfig c = read(words);
  EXPECT_EQ(c.model, "m");
  EXPECT_EQ(c.tokens.max_source, 32);
  EXPECT_EQ(c.optimizer.kind, OptimizerKind::adafactor);
  EXPECT_FALSE(c.optimizer.relative_step);
  EXPECT_EQ(c.learning_rate, 1e-3);
  EXPECT_EQ(c.memory.gpu, Bytes{8'000'000'000});
  EXPECT_FALSE(is_seq2seq(Words{dir.write("w.toml", "[model]\ntype = 'wan'\n")}));
  EXPECT_FALSE(is_seq2seq(Words{"--dit", "x.safetensors", "--dataset_config", "y"}));
  EXPECT_FAILS(read({dir.write("x.toml", "[model]\ntype = 't5'\n[data]\ntrain_fil = 'a'\n")}),
               ErrorCode::input, "line 4: train_fil: unknown key");
}

TEST(Seq2SeqConfig, SaysWhatIsWrong) {
  const auto with = [](Words more) {
    Words all = {"--model_name_or_path", "m", "--train_file", "a", "--output_dir", "o"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_FAILS(read(with({"--learing_rate", "1"})), ErrorCode::usage, "learning_rate");
  EXPECT_FAILS(read(with({"--fp16"})), ErrorCode::usage, "overflow");
  EXPECT_FAILS(read(with({"--fp16", "True"})), ErrorCode::usage, "overflow");
  EXPECT_TRUE(read(with({"--fp16", "False", "--push_to_hub", "0"})).notes.empty());
  EXPECT_FAILS(read(with({"--epochs", "2.5"})), ErrorCode::usage, "whole number");
  EXPECT_FAILS(read(with({"--optim", "lion"})), ErrorCode::usage, "adafactor");
  EXPECT_FAILS(read(with({"--predict_with_generate"})), ErrorCode::usage, "predict");
  EXPECT_FAILS(read(with({"--dropout", "1"})), ErrorCode::usage, "0 to 1");
  EXPECT_FAILS(read(with({"--gpu", "24"})), ErrorCode::usage,
               "--gpu: 24 means 24 bytes; did you mean 24GB?");
  EXPECT_FAILS(read({"--train_file", "a", "--output_dir", "o"}), ErrorCode::usage, "no model");
  EXPECT_THAT(seq2seq_flags_help(), HasSubstr("--max_source_length"));
}

TEST(TransformersFolder, ShardsWhatIsLargeAndReadsBack) {
  const test::TempDir dir;
  std::vector<std::vector<float>> values(5, std::vector<float>(100, 1.5f));
  std::vector<SavedTensor> tensors;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values[i]));
    tensors.push_back({.name = fmt::format("t{}", i),
                       .dtype = DType::f32,
                       .shape = {10, 10},
                       .source = [bytes](const ByteSink& sink) { sink(bytes); }});
  }
  const auto paths = write_model_weights(dir.path(), tensors, Bytes{800});
  EXPECT_EQ(paths.size(), 4u);
  EXPECT_THAT(paths[0], HasSubstr("model-00001-of-00003.safetensors"));
  const t5::Config config = support::tiny_t5();
  write_model_files(dir.path("nowhere"), "", config, DType::f32, dir.path());
  const WeightFiles sharded = WeightFiles::open(dir.path());
  EXPECT_EQ(sharded.tensors().size(), 5u);
  ASSERT_TRUE(sharded.config_path());
  const std::string text = test::read_whole(*sharded.config_path());
  const t5::Config again = t5::read_config({.text = text, .path = "config.json", .rule = ""});
  EXPECT_EQ(again.d_ff, config.d_ff);
  EXPECT_EQ(again.decoder_layers, config.decoder_layers);
  EXPECT_EQ(again.tied, config.tied);
  EXPECT_EQ(again.gated, config.gated);
  EXPECT_THAT(write_model_weights(dir.path(), tensors),
              ElementsAre(dir.path() + "/model.safetensors"));
  EXPECT_EQ(WeightFiles::open(dir.path()).files().size(), 1u) << "the shards are gone";
}

// What from_pretrained() reads holds for the weights that stand beside it.
TEST(TransformersFolder, ConfigSaysWhatIsWritten) {
  const test::TempDir dir;
  t5::Config config = support::tiny_t5();
  config.tied = true, config.scaled_head = false;
  const auto written = [&](const char* text, DType weights) {
    dir.write("model/config.json", text);
    dir.write("to/x", "");
    write_model_files(dir.path("model"), "", config, weights, dir.path("to"));
    return test::read_whole(dir.path("to/config.json"));
  };
  EXPECT_EQ(written(R"({"architectures": ["T5EncoderModel"], "d_kv": 8, "model_type": "t5",
 "n_positions": 512, "tie_word_embeddings": false, "torch_dtype": "float16"})",
                    DType::bf16),
            R"({"architectures": ["T5ForConditionalGeneration"], "d_kv": 8, "model_type": "t5",
 "n_positions": 512, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "scale_decoder_outputs": false})");
  EXPECT_EQ(
      written(
          R"({"architectures":["MT5ForConditionalGeneration"],"dtype":"bfloat16","torch_dtype":"float16"})",
          DType::f32),
      R"({"architectures":["MT5ForConditionalGeneration"],"dtype":"float32","torch_dtype":"float32"})");
  EXPECT_THAT(written(R"({"architectures": null, "model_type": "umt5"})", DType::f32),
              HasSubstr(R"("architectures": ["UMT5ForConditionalGeneration"])"));
}

TEST(TransformersFolder, ConfigOfAModelWithoutOneHasItsFamily) {
  const test::TempDir dir;
  t5::Config config = support::tiny_t5();
  config.bias_per_block = true;
  write_model_files(dir.path("nowhere"), "", config, DType::bf16, dir.path());
  const std::string text = test::read_whole(dir.path("config.json"));
  for (const char* part : {"[\"UMT5ForConditionalGeneration\"]", "\"model_type\": \"umt5\"",
                           "\"torch_dtype\": \"bfloat16\"", "\"is_encoder_decoder\": true"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// --tokenizer_name may name the file itself.
TEST(TransformersFolder, ATokenizerOfAnotherNameIsFound) {
  const test::TempDir dir;
  dir.write("tokens/my.model", "pieces");
  dir.write("tokens/tokenizer_config.json", "{}");
  dir.write("tokens/tokenizer.json", "another");
  dir.write("to/x", "");
  write_model_files(dir.path("nowhere"), dir.path("tokens/my.model"), support::tiny_t5(),
                    DType::f32, dir.path("to"));
  EXPECT_EQ(test::read_whole(dir.path("to/spiece.model")), "pieces");
  EXPECT_EQ(test::read_whole(dir.path("to/tokenizer_config.json")), "{}");
  EXPECT_FALSE(std::filesystem::exists(dir.path("to/tokenizer.json")));
}

}  // namespace
}  // namespace ballast::train::seq2seq_config_test
