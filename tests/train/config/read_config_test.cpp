#include "train/config/read_config.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <sstream>

#include "tests/support/errors.h"
#include "tests/support/hub_tree.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace ballast::train::read_config_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const std::string kDiffusionPipe24Gb = test::golden_path("diffusion_pipe_24gb/main.toml");
const std::string kExamples = test::source_path("examples/");

TrainConfig read(const std::vector<std::string>& arguments) { return read_config(arguments); }

// The arguments of the one command in a script.
std::vector<std::string> command_of(const std::string& script) {
  const std::string text = test::read_whole(script);
  std::istringstream in(text.substr(text.find("ballast train") + 13));
  std::vector<std::string> words;
  for (std::string word; in >> word;) {
    if (word != "\\") words.push_back(word);
  }
  return words;
}

TEST(TrainersFlags, AreKnownFromOtherOptions) {
  EXPECT_TRUE(names_a_run(std::vector<std::string>{"--model", "m", "--dataset-path=clips"}));
  EXPECT_TRUE(names_a_run(std::vector<std::string>{"--dit", "m"}));
  EXPECT_FALSE(names_a_run(std::vector<std::string>{"--model", "dataset_path", "--frames", "81"}));
}

TEST(DiffusionPipe24Gb, IsReadWithOneNotePerIgnoredKey) {
  const TrainConfig c = read({kDiffusionPipe24Gb});
  EXPECT_THAT(c.notes, UnorderedElementsAre(HasSubstr("optimizer.weight_decay (line 34)"),
                                            AllOf(HasSubstr("dataset: "), HasSubstr("is used"))));
  EXPECT_EQ(c.dataset.config, test::golden_path("diffusion_pipe_24gb/dataset.toml"));
  EXPECT_EQ(c.output_dir, "output/wan22_squish_i2v");
  EXPECT_EQ(c.caching.batch_size, 1);
  EXPECT_EQ(c.epochs, 50);
  EXPECT_EQ(c.schedule.warmup_steps, 10);
  EXPECT_FALSE(c.evaluate_before_first_step);
  EXPECT_EQ(c.memory.blocks_to_swap, 36);
  EXPECT_EQ(c.memory.checkpointing, Checkpointing::recompute_offloaded);
  EXPECT_EQ(c.save.epochs, 5);
  EXPECT_EQ(c.model.transformer, "");
  EXPECT_EQ(c.model.transformer_dtype, DType::f8_e5m2);
  EXPECT_EQ(c.adapter.rank, 16);
  EXPECT_EQ(c.optimizer.kind, OptimizerKind::adamw8bit_kahan);
  EXPECT_EQ(c.optimizer.beta2, 0.99);
  EXPECT_EQ(c.schedule.learning_rate, 2e-5);
}

TEST(Examples, AreRead) {
  const TrainConfig i2v = read({kExamples + "i2v_lora_24gb.toml"});
  EXPECT_EQ(i2v.memory.gpu, 24_GB);
  EXPECT_EQ(i2v.timesteps.max_t, 0.9);
  const TrainConfig both = read({kExamples + "t2v_both_experts.toml"});
  EXPECT_EQ(both.model.experts, Experts::both);
  EXPECT_EQ(both.eval_datasets.at(0).config, kExamples + "t2v_dataset.toml");
  const TrainConfig full = read(command_of(kExamples + "full_5b.sh"));
  EXPECT_EQ(full.method, Method::full);
  EXPECT_EQ(full.optimizer.rounding, UpdateRounding::stochastic);
  EXPECT_EQ(full.memory.ram, 64_GB);
  const TrainConfig musubi = read(command_of(kExamples + "musubi_lora.sh"));
  EXPECT_EQ(musubi.adapter.rank, 32);
  EXPECT_EQ(musubi.output_name, "motion_high");
}

TEST(CommandLine, WinsOverTheFile) {
  const TrainConfig c = read({kDiffusionPipe24Gb,
                              "--gpu",
                              "16GB",
                              "--ram=20GB",
                              "--disk",
                              "1TB",
                              "--policy",
                              "stream1",
                              "--max-steps",
                              "7",
                              "--seed",
                              "3",
                              "--output-dir",
                              "elsewhere",
                              "--resume",
                              "--reset_dataloader",
                              "--reset_optimizer",
                              "--reset_optimizer_params",
                              "--regenerate_cache",
                              "--trust_cache",
                              "--cache-only",
                              "--i_know_what_i_am_doing",
                              "--experts",
                              "both",
                              "--on-nan",
                              "skip",
                              "--lora-format",
                              "kohya",
                              "--rounding",
                              "nearest",
                              "--ema-decay",
                              "0.9",
                              "--keep-checkpoints",
                              "5",
                              "--memory-line-steps",
                              "0",
                              "--stream-blocks",
                              "12"});
  EXPECT_EQ(c.memory.gpu, 16_GB);
  EXPECT_EQ(c.memory.ram, 20_GB);
  EXPECT_EQ(c.memory.disk, 1000_GB);
  EXPECT_EQ(c.memory.policy, "stream1");
  EXPECT_EQ(c.memory.stream_blocks, 12);
  EXPECT_EQ(c.max_steps, 7);
  EXPECT_EQ(c.seed, 3u);
  EXPECT_EQ(c.output_dir, "elsewhere");
  EXPECT_EQ(c.resume, "");
  EXPECT_TRUE(c.reset_dataloader && c.reset_optimizer && c.reset_optimizer_params);
  EXPECT_TRUE(c.regenerate_cache && c.trust_cache && c.cache_only && c.allow_many_resolutions);
  EXPECT_EQ(c.model.experts, Experts::both);
  EXPECT_EQ(c.on_nan, OnNan::skip);
  EXPECT_EQ(c.lora_format, LoraFormat::kohya);
  EXPECT_EQ(c.optimizer.rounding, UpdateRounding::nearest);
  EXPECT_EQ(c.optimizer.ema_decay, 0.9);
  EXPECT_EQ(c.keep_checkpoints, 5);
  EXPECT_EQ(c.memory_line_steps, 0);
  EXPECT_EQ(read({kDiffusionPipe24Gb, "--resume_from_checkpoint", "20260101_00-00-00"}).resume,
            "20260101_00-00-00");
  EXPECT_EQ(read({kDiffusionPipe24Gb}).resume, std::nullopt);
}

TEST(CommandLine, TakesLaunchersFlagsBesideItsOwn) {
  const TrainConfig c = read(
      {"--num_gpus=1", "--deepspeed", "--config", kDiffusionPipe24Gb, "--master_port", "29501"});
  EXPECT_EQ(c.epochs, 50);
  EXPECT_THAT(c.notes, testing::Contains("--master_port: ignored (launcher option)"));
  EXPECT_THAT(c.notes, testing::Contains("--num_gpus: ignored (launcher option)"));
  EXPECT_THAT(read({"--num_gpus", "8", "--config", kDiffusionPipe24Gb}).notes,
              testing::Contains("--num_gpus 8: one GPU is used; several are not supported yet"));
  // A switch has no value: what follows is the config.
  EXPECT_TRUE(read({"--cache_only", kDiffusionPipe24Gb}).cache_only);
  EXPECT_EQ(read({"--cache_only", kDiffusionPipe24Gb}).source, kDiffusionPipe24Gb);
}

TEST(CommandLine, ExplainsWhatItDoesNotTake) {
  EXPECT_FAILS(read({kDiffusionPipe24Gb, "--max-stpes", "3"}), ErrorCode::usage,
               "--max_stpes: unknown flag, did you mean max_steps?");
  EXPECT_FAILS(read({kDiffusionPipe24Gb, "--gpu", "plenty"}), ErrorCode::usage,
               "--gpu: expected a size such as 24GB, found \"plenty\"");
  EXPECT_FAILS(read({kDiffusionPipe24Gb, "--gpu"}), ErrorCode::usage,
               "expected one value, found nothing");
  EXPECT_FAILS(read({kDiffusionPipe24Gb, "--policy", "best"}), ErrorCode::usage,
               "one of auto, resident");
  EXPECT_FAILS(read({kDiffusionPipe24Gb, "--cache_only=yes"}), ErrorCode::usage,
               "expected no value");
  EXPECT_FAILS(read({kDiffusionPipe24Gb, "--max_steps", "0"}), ErrorCode::usage,
               "expected at least 1");
  EXPECT_FAILS(read({kDiffusionPipe24Gb, "--ema_decay", "2"}), ErrorCode::usage, "between 0 and 1");
  EXPECT_FAILS(read({kDiffusionPipe24Gb, "--dump_dataset", "x"}), ErrorCode::usage, "not offered");
  EXPECT_FAILS(read({kDiffusionPipe24Gb, kDiffusionPipe24Gb}), ErrorCode::usage,
               "two configurations");
  EXPECT_FAILS(read({kDiffusionPipe24Gb, "--config", kDiffusionPipe24Gb}), ErrorCode::usage,
               "two configurations");
  EXPECT_FAILS(read({}), ErrorCode::usage, "there is no configuration");
  EXPECT_FAILS(read({"--seed", "3"}), ErrorCode::usage, "there is no configuration");
  // What is wrong with a flag is said before what is missing.
  EXPECT_FAILS(read({"--gpu", "lots"}), ErrorCode::usage, "--gpu: expected a size");
  EXPECT_FAILS(read({"missing.toml"}), ErrorCode::io, "missing.toml");
}

TEST(CommandLine, RecognisesADatasetFileGivenByMistake) {
  EXPECT_FAILS(read({kExamples + "i2v_dataset.toml"}), ErrorCode::input,
               "this describes a dataset, not a run");
  EXPECT_FAILS(read({kExamples + "musubi_dataset.toml"}), ErrorCode::input,
               "this describes a dataset, not a run");
}

TEST(ConfigPaths, AreLookedForBesideTheConfigLast) {
  const test::TempDir dir;
  const std::string config = dir.write("sub/run.toml", test::read_whole(kDiffusionPipe24Gb));
  EXPECT_EQ(read({config}).dataset.config, "dataset.toml");  // nowhere: left as written
  dir.write("sub/dataset.toml", "");
  EXPECT_EQ(read({config}).dataset.config, dir.path("sub/dataset.toml"));
  const std::filesystem::path before = std::filesystem::current_path();
  dir.write("dataset.toml", "");
  std::filesystem::current_path(dir.path());
  const TrainConfig here = read({config});
  std::filesystem::current_path(before);
  EXPECT_EQ(here.dataset.config, "dataset.toml");
}

TEST(ConfigHelp, ListsEveryFlag) {
  std::string help = common_flags_help();
  for (const Dialect d : {Dialect::diffusion_pipe, Dialect::musubi, Dialect::flow_matching}) {
    help += dialect_flags_help(d);
  }
  for (const char* flag : {"--gpu VALUE", "--resume [VALUE]", "--network_args VALUE...",
                           "--use_8bit_adam", "--dataset_path VALUE"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
}

// In every dialect, wherever a model is named.
TEST(ModelIds, BecomeFoldersOfTheHubsCache) {
  support::HubTree hub;
  hub.add("Wan-AI/Wan2.2-T2V-A14B", "aa11", "low_noise_model/x.safetensors", "x");
  hub.add("Wan-AI/Wan2.2-T2V-A14B", "aa11", "high_noise_model/x.safetensors", "x");
  hub.refer("Wan-AI/Wan2.2-T2V-A14B", "main", "aa11");
  hub.add("google/umt5-xxl", "bb22", "spiece.model", "x");
  hub.add("org/parts", "cc33", "vae.safetensors", "x");
  hub.refer("org/parts", "v1", "cc33");
  const std::string model = hub.snapshot("Wan-AI/Wan2.2-T2V-A14B", "aa11");
  const std::string vae = hub.snapshot("org/parts", "cc33") + "/vae.safetensors";
  const test::TempDir dir;
  const std::string pipe =
      dir.write("run.toml",
                "output_dir = 'out'\ndataset = 'data.toml'\nepochs = 1\n[model]\ntype = 'wan'\n"
                "ckpt_path = 'Wan-AI/Wan2.2-T2V-A14B'\n"
                "transformer_path = 'Wan-AI/Wan2.2-T2V-A14B/low_noise_model'\n"
                "vae_path = 'org/parts@v1/vae.safetensors'\nllm_path = 'org/parts@cc33'\n"
                "tokenizer_path = 'google/umt5-xxl'\ndtype = 'bfloat16'\n"
                "[adapter]\ntype = 'lora'\nrank = 4\n[optimizer]\ntype = 'adamw'\nlr = 1e-4\n");
  const TrainConfig a = read({pipe});
  EXPECT_EQ(a.model.checkpoint, model);
  EXPECT_EQ(a.model.transformer, model + "/low_noise_model");
  EXPECT_EQ(a.caching.vae, vae);
  EXPECT_EQ(a.caching.text_encoder, hub.snapshot("org/parts", "cc33"));
  EXPECT_EQ(a.caching.tokenizer, hub.snapshot("google/umt5-xxl", "bb22"));
  EXPECT_THAT(a.notes, ElementsAre(HasSubstr("google/umt5-xxl: the cache has no main revision")));
  const TrainConfig b = read(
      {"--dit", "Wan-AI/Wan2.2-T2V-A14B/low_noise_model", "--dit_high_noise",
       "Wan-AI/Wan2.2-T2V-A14B/high_noise_model", "--vae", "org/parts@v1/vae.safetensors", "--t5",
       "org/parts@v1", "--dataset_config", "data.toml", "--network_module", "networks.lora_wan",
       "--network_dim", "4", "--output_dir", "out", "--task", "t2v-A14B"});
  EXPECT_EQ(b.model.transformer, model + "/low_noise_model");
  EXPECT_EQ(b.model.high_noise_transformer, model + "/high_noise_model");
  EXPECT_EQ(b.caching.vae, vae);
  EXPECT_EQ(b.caching.text_encoder, hub.snapshot("org/parts", "cc33"));
  const TrainConfig c =
      read({"--dataset_path", "clips", "--model", "Wan-AI/Wan2.2-T2V-A14B/low_noise_model"});
  EXPECT_EQ(c.model.checkpoint, model + "/low_noise_model");
  EXPECT_EQ(read({"--dataset_path", "clips", "--model", "someone/else"}).model.checkpoint,
            "someone/else");
}

}  // namespace
}  // namespace ballast::train::read_config_test
