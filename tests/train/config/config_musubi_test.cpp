#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/support/temp_dir.h"
#include "train/config/python_literal.h"
#include "train/config/read_config.h"

namespace ballast::train::config_musubi_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

TrainConfig read(std::vector<std::string> flags) {
  std::vector<std::string> all = {"--dit",  "low.safetensors", "--dataset_config",
                                  "d.toml", "--output_dir",    "out"};
  all.insert(all.end(), flags.begin(), flags.end());
  return read_config(all);
}

TEST(MusubiConfig, HasItsTrainersDefaults) {
  const TrainConfig c = read({});
  EXPECT_EQ(c.dialect, Dialect::musubi);
  EXPECT_EQ(c.model.checkpoint, "low.safetensors");
  EXPECT_EQ(c.dataset.config, "d.toml");
  EXPECT_EQ(c.dataset.named, "--dataset_config");
  EXPECT_EQ(c.adapter.rank, 4);
  EXPECT_EQ(c.adapter.alpha, 1);
  EXPECT_EQ(c.adapter.dtype, DType::f32);
  EXPECT_EQ(c.model.transformer_dtype, std::nullopt);
  EXPECT_EQ(c.save_dtype, DType::f32);
  EXPECT_EQ(c.lora_format, LoraFormat::kohya);
  EXPECT_EQ(c.schedule.style, ScheduleStyle::transformers);
  EXPECT_EQ(c.schedule.learning_rate, 2e-6);
  EXPECT_EQ(c.max_steps, 1600);
  EXPECT_EQ(c.epochs, kNoEpochLimit);
  EXPECT_EQ(c.optimizer.kind, OptimizerKind::adamw);
  EXPECT_EQ(c.optimizer.state_dtype, DType::f32);
  EXPECT_EQ(c.timesteps.sampling, TimestepSampling::sigma);
  EXPECT_EQ(c.timesteps.time_offset, 0);  // the sigma table holds the times themselves
  EXPECT_EQ(read({"--timestep_sampling", "shift"}).timesteps.time_offset, 1);
  EXPECT_THAT(c.notes, IsEmpty());
}

TEST(MusubiConfig, HonoursItsFlags) {
  const TrainConfig c = read({"--task",
                              "t2v-A14B",
                              "--mixed-precision",
                              "fp16",
                              "--fp8_base",
                              "--blocks-to-swap",
                              "20",
                              "--gradient_checkpointing",
                              "--gradient_checkpointing_cpu_offload",
                              "--max_train_steps",
                              "500",
                              "--gradient_accumulation_steps",
                              "4",
                              "--seed",
                              "42",
                              "--max_grad_norm",
                              "0",
                              "--learning_rate",
                              "2e-4",
                              "--lr_scheduler",
                              "cosine_with_min_lr",
                              "--lr_warmup_steps",
                              "10%",
                              "--lr_decay_steps",
                              "50",
                              "--lr_scheduler_num_cycles",
                              "3",
                              "--lr_scheduler_power",
                              "2",
                              "--lr_scheduler_timescale",
                              "100",
                              "--lr_scheduler_min_lr_ratio",
                              "0.1",
                              "--timestep_sampling",
                              "flux_shift",
                              "--discrete_flow_shift",
                              "5",
                              "--sigmoid_scale",
                              "1.2",
                              "--weighting_scheme",
                              "cosmap",
                              "--logit_mean",
                              "-0.5",
                              "--logit_std",
                              "1.5",
                              "--mode_scale",
                              "1.1",
                              "--min_timestep",
                              "875",
                              "--max_timestep",
                              "1000",
                              "--preserve_distribution_shape",
                              "--num_timestep_buckets",
                              "8",
                              "--network_module",
                              "networks.lora_wan",
                              "--network_dim",
                              "32",
                              "--network_alpha",
                              "16",
                              "--network_dropout",
                              "0.1",
                              "--network_args",
                              "loraplus_lr_ratio=4",
                              "rank_dropout=0.2",
                              "module_dropout=0.3",
                              "exclude_patterns=[r'.*ffn\\.0', \".*k\"]",
                              "include_patterns=None",
                              "--network_weights",
                              "old.safetensors",
                              "--base_weights",
                              "a",
                              "b",
                              "--base_weights_multiplier",
                              "0.5",
                              "--output_name",
                              "name",
                              "--save_every_n_steps",
                              "100",
                              "--save_every_n_epochs",
                              "2",
                              "--save_state",
                              "--save_precision",
                              "bf16",
                              "--resume",
                              "dir",
                              "--no_metadata",
                              "--metadata_title",
                              "A title",
                              "--training_comment",
                              "words"});
  EXPECT_EQ(c.model.boundary, 0.875);
  EXPECT_EQ(c.model.dtype, DType::f16);
  EXPECT_EQ(c.model.transformer_dtype, DType::f8_e4m3);
  EXPECT_EQ(c.memory.blocks_to_swap, 20);
  EXPECT_EQ(c.memory.checkpointing, Checkpointing::recompute_offloaded);
  EXPECT_EQ(c.max_steps, 500);
  EXPECT_EQ(c.gradient_accumulation, 4);
  EXPECT_EQ(c.seed, 42u);
  EXPECT_EQ(c.max_grad_norm, 0);
  EXPECT_EQ(c.schedule.learning_rate, 2e-4);
  EXPECT_EQ(c.schedule.kind, ScheduleKind::cosine_with_min_lr);
  EXPECT_EQ(c.warmup_share, 0.1);
  EXPECT_EQ(schedule_of(c, 10).warmup_steps, 50);
  EXPECT_EQ(c.schedule.decay_steps, 50);
  EXPECT_EQ(c.schedule.cycles, 3);
  EXPECT_EQ(c.schedule.power, 2);
  EXPECT_EQ(c.schedule.timescale, 100);
  EXPECT_EQ(c.schedule.min_rate_ratio, 0.1);
  EXPECT_EQ(c.timesteps.sampling, TimestepSampling::flux_shift);
  EXPECT_TRUE(c.timesteps.flux_shift);
  EXPECT_EQ(c.timesteps.shift, 5);
  EXPECT_EQ(c.timesteps.sigmoid_scale, 1.2);
  EXPECT_EQ(c.timesteps.weighting, Weighting::cosmap);
  EXPECT_EQ(c.timesteps.logit_mean, -0.5);
  EXPECT_EQ(c.timesteps.logit_std, 1.5);
  EXPECT_EQ(c.timesteps.mode_scale, 1.1);
  EXPECT_EQ(c.timesteps.min_t, 0.875);
  EXPECT_EQ(c.timesteps.max_t, 1);
  EXPECT_TRUE(c.timesteps.preserve_shape);
  EXPECT_EQ(c.timesteps.strata, 8);
  EXPECT_EQ(c.timesteps.time_offset, 1);
  EXPECT_EQ(c.adapter.rank, 32);
  EXPECT_EQ(c.adapter.alpha, 16);
  EXPECT_EQ(c.adapter.dropout, 0);
  EXPECT_EQ(c.adapter.hidden_dropout, 0.1);
  EXPECT_EQ(c.adapter.rank_dropout, 0.2);
  EXPECT_EQ(c.adapter.module_dropout, 0.3);
  EXPECT_EQ(c.adapter.up_rate_ratio, 4);
  EXPECT_TRUE(c.adapter.exclude_is_regex);
  EXPECT_THAT(c.adapter.exclude, ElementsAre(".*ffn\\.0", ".*k"));
  EXPECT_THAT(c.adapter.include, IsEmpty());
  EXPECT_EQ(c.adapter.init_from, "old.safetensors");
  EXPECT_THAT(c.model.base_loras, ElementsAre(Pair("a", 0.5), Pair("b", 1.0)));
  EXPECT_EQ(c.output_name, "name");
  EXPECT_EQ(c.save.steps, 100);
  EXPECT_EQ(c.checkpoint.epochs, 2);
  EXPECT_EQ(c.save_dtype, DType::bf16);
  EXPECT_EQ(c.resume, "dir");
  EXPECT_FALSE(c.write_metadata);
  EXPECT_THAT(c.metadata, ElementsAre(Pair("modelspec.title", "A title"),
                                      Pair("ss_training_comment", "words")));
  EXPECT_THAT(c.notes, IsEmpty());
}

TEST(MusubiConfig, HasRulesForSteps) {
  const TrainConfig c = read({"--lr_scheduler", "piecewise_constant", "--lr_scheduler_args",
                              "step_rules=1:100,0.1:200,0.01"});
  EXPECT_EQ(c.schedule.kind, ScheduleKind::piecewise_constant);
  ASSERT_EQ(c.schedule.pieces.size(), 3u);
  EXPECT_EQ(c.schedule.pieces[1].until, 200);
  EXPECT_EQ(c.schedule.pieces[1].factor, 0.1);
  EXPECT_FAILS(read({"--lr_scheduler", "piecewise_constant"}), ErrorCode::usage, "step_rules=");
  EXPECT_FAILS(
      read({"--lr_scheduler", "piecewise_constant", "--lr_scheduler_args", "step_rules=x"}),
      ErrorCode::usage, "found step_rules=x");
  EXPECT_FAILS(read({"--lr_scheduler_args", "step_rules=1"}), ErrorCode::usage, "only piecewise");
}

TEST(MusubiConfig, TakesTheRankOfALora) {
  EXPECT_EQ(read({"--dim_from_weights", "--network_weights", "old.safetensors"}).adapter.rank, 0);
  EXPECT_FAILS(read({"--dim_from_weights"}), ErrorCode::usage, "--network_weights");
}

TEST(MusubiConfig, KnowsOptimizersByTheirClasses) {
  const auto kind = [](const char* type) {
    return read({"--optimizer_type", type}).optimizer.kind;
  };
  EXPECT_EQ(kind("torch.optim.AdamW"), OptimizerKind::adamw);
  EXPECT_EQ(kind("optimi.AdamW"), OptimizerKind::adamw_optimi);
  EXPECT_EQ(kind("optimi.StableAdamW"), OptimizerKind::stableadamw);
  EXPECT_EQ(kind("bitsandbytes.optim.AdamW8bit"), OptimizerKind::adamw8bit);
  EXPECT_EQ(kind("bitsandbytes.optim.PagedAdamW8bit"), OptimizerKind::adamw8bit);
  EXPECT_EQ(kind("transformers.optimization.Adafactor"), OptimizerKind::adafactor);
}

TEST(MusubiConfig, NamesFlagsThatMeanNothingHere) {
  const TrainConfig c = read({"--compile", "--compile_mode", "default", "--cuda_allow_tf32",
                              "--ddp_timeout", "30", "--huggingface_token", "hunter2",
                              "--async_upload", "--show_timesteps", "console", "--vae_tiling"});
  const std::string all = fmt::format("{}", fmt::join(c.notes, "\n"));
  for (const char* flag :
       {"--compile: ", "--compile_mode: ", "--cuda_allow_tf32: ", "--ddp_timeout: ",
        "--huggingface_token: ", "--async_upload: ", "--show_timesteps: ", "--vae_tiling: "}) {
    EXPECT_THAT(all, testing::HasSubstr(flag));
  }
  EXPECT_THAT(all, testing::Not(testing::HasSubstr("hunter2")));
  EXPECT_FAILS(read({"--resume_from_huggingface"}), ErrorCode::usage, "nothing is downloaded");
}

TEST(MusubiConfig, EpochsWinOverSteps) {
  const TrainConfig c = read({"--max_train_epochs", "16", "--max_train_steps", "5"});
  EXPECT_EQ(c.epochs, 16);
  EXPECT_EQ(c.max_steps, std::nullopt);
  EXPECT_EQ(total_steps(c, 10), 160);
  EXPECT_EQ(total_steps(read({}), 7), 1600);
}

TEST(MusubiConfig, ReadsOptimizerArguments) {
  const TrainConfig adam = read({"--optimizer_type", "adamw8bit", "--optimizer_args",
                                 "weight_decay=0.1", "betas=(0.9, 0.95)", "eps=1e-6"});
  EXPECT_EQ(adam.optimizer.kind, OptimizerKind::adamw8bit);
  EXPECT_EQ(adam.optimizer.weight_decay, 0.1);
  EXPECT_EQ(adam.optimizer.beta2, 0.95);
  EXPECT_EQ(adam.optimizer.eps, 1e-6);
  const TrainConfig factor =
      read({"--optimizer_type", "Adafactor", "--optimizer_args", "relative_step=False",
            "scale_parameter=False", "warmup_init=False", "eps=(1e-20, 1e-2)"});
  EXPECT_FALSE(factor.optimizer.relative_step);
  EXPECT_EQ(factor.optimizer.eps_scale, 1e-2);
  EXPECT_EQ(factor.optimizer.weight_decay, 0);
  (void)read({"--optimizer_type", "Adafactor", "--lr_scheduler", "adafactor:1e-3"});
  EXPECT_FAILS(read({"--lr_scheduler", "adafactor:1e-3"}), ErrorCode::usage, "relative_step=True");
  EXPECT_EQ(read({"--optimizer_type", "bitsandbytes.optim.AdamW8bit"}).optimizer.kind,
            OptimizerKind::adamw8bit);
  EXPECT_FAILS(read({"--task", "t2v-14B", "--task", "i2v-14B"}), ErrorCode::usage,
               "i2v-14B is not supported");
  EXPECT_FAILS(read({"--optimizer_type", "Prodigy"}), ErrorCode::usage,
               "one of AdamW, AdamW8bit, Adafactor");
  EXPECT_FAILS(read({"--optimizer_args", "weight_decy=1"}), ErrorCode::usage,
               "did you mean weight_decay?");
  EXPECT_FAILS(read({"--optimizer_args", "weight_decay"}), ErrorCode::usage, "key=value");
  EXPECT_FAILS(read({"--optimizer_args", "betas=0.9"}), ErrorCode::usage, "two numbers");
  EXPECT_FAILS(read({"--optimizer_args", "betas=(0.9, 1)"}), ErrorCode::usage, "from 0 to 1");
  EXPECT_FAILS(read({"--optimizer_args", "eps=__import__('os')"}), ErrorCode::usage,
               "is no Python literal");
}

TEST(MusubiConfig, TrainsBothExpertsWhereTwoModelsAreGiven) {
  const TrainConfig c = read({"--task", "i2v-A14B", "--dit_high_noise", "high.safetensors"});
  EXPECT_EQ(c.model.experts, Experts::both);
  EXPECT_EQ(c.model.transformer, "low.safetensors");
  EXPECT_EQ(c.model.high_noise_transformer, "high.safetensors");
  EXPECT_EQ(c.model.boundary, 0.9);
  EXPECT_THAT(c.notes, ElementsAre(HasSubstr("two files are written")));
  EXPECT_EQ(read({"--task", "i2v-A14B", "--timestep_boundary", "850"}).model.boundary, 0.85);
  EXPECT_FAILS(read({"--dit_high_noise", "x"}), ErrorCode::usage, "--timestep_boundary");
}

TEST(MusubiConfig, ScaledFp8HasAScalePerRow) {
  const TrainConfig plain = read({"--fp8_base"}), scaled = read({"--fp8_base", "--fp8_scaled"});
  EXPECT_EQ(plain.model.transformer_dtype, DType::f8_e4m3);
  EXPECT_FALSE(plain.model.transformer_scales);
  EXPECT_EQ(scaled.model.transformer_dtype, DType::f8_e4m3);
  EXPECT_TRUE(scaled.model.transformer_scales);
  EXPECT_FALSE(scaled.memory.fp8_matmul);
  EXPECT_TRUE(read({"--fp8_base", "--fp8_matmul"}).memory.fp8_matmul);
}

TEST(MusubiConfig, MayLimitNormsOfTheLora) {
  EXPECT_EQ(read({}).adapter.max_norm, 0);
  EXPECT_EQ(read({"--scale_weight_norms", "0.5"}).adapter.max_norm, 0.5);
}

TEST(MusubiConfig, NotesFlagsWithoutEffectAndNoSecret) {
  const TrainConfig c =
      read({"--sdpa", "--vae", "v", "--t5", "t", "--fp8_t5", "--use_pinned_memory_for_block_swap",
            "--block_swap_ring_size", "2", "--max_data_loader_n_workers", "2", "--log_with",
            "wandb", "--wandb_api_key", "SECRET", "--sample_prompts", "p.txt"});
  EXPECT_EQ(c.notes.size(), 8u);
  EXPECT_EQ(c.caching.vae, "v");
  EXPECT_EQ(c.caching.text_encoder, "t");
  for (const std::string& note : c.notes) EXPECT_THAT(note, Not(HasSubstr("SECRET")));
}

TEST(MusubiConfig, ExplainsWrongFlags) {
  EXPECT_FAILS(read({"--netwrok_dim", "4"}), ErrorCode::usage,
               "--netwrok_dim: unknown flag, did you mean network_dim?");
  EXPECT_FAILS(read({"--network_dim", "four"}), ErrorCode::usage, "expected an integer");
  EXPECT_FAILS(read({"--network_dim", "0"}), ErrorCode::usage, "1 to 65536");
  EXPECT_FAILS(read({"--task", "flf2v-14B"}), ErrorCode::usage, "is not supported");
  EXPECT_FAILS(read({"--task", "t2v-A15B"}), ErrorCode::usage, "(t2v-A14B?)");
  EXPECT_FAILS(read({"--fp8_scaled"}), ErrorCode::usage, "needs --fp8_base");
  for (const char* norm : {"0", "-1"}) {
    EXPECT_FAILS(read({"--scale_weight_norms", norm}), ErrorCode::usage,
                 "--scale_weight_norms: expected a number above 0");
  }
  EXPECT_FAILS(read({"--scale_weight_norms", "inf"}), ErrorCode::usage, "a finite number");
  EXPECT_FAILS(read({"--network_module", "networks.loha"}), ErrorCode::usage, "LoHa and LoKr");
  EXPECT_FAILS(read({"--network_args", "module_dropout=1"}), ErrorCode::usage, "less than 1");
  EXPECT_FAILS(read({"--network_args", "rank_dropout=-1"}), ErrorCode::usage, "rank_dropout");
  EXPECT_FAILS(read({"--min_timestep", "900", "--max_timestep", "100"}), ErrorCode::usage,
               "found 900 and 100");
  EXPECT_FAILS(read({"--max_timestep", "2000"}), ErrorCode::usage, "--max_timestep");
  EXPECT_FAILS(read({"--base_weights_multiplier", "1"}), ErrorCode::usage, "1 strengths for 0");
  EXPECT_FAILS(read({"--lr_warmup_steps", "200%"}), ErrorCode::usage, "share");
  EXPECT_FAILS(read_config(std::vector<std::string>{"--dit", "x"}), ErrorCode::usage,
               "--dataset_config is missing");
}

TEST(MusubiConfig, ASizeWithoutAUnitIsAskedAbout) {
  for (const char* flag : {"--gpu", "--ram", "--disk"}) {
    EXPECT_FAILS(read({flag, "24"}), ErrorCode::usage,
                 std::string(flag) + ": 24 means 24 bytes; did you mean 24GB?");
  }
  EXPECT_EQ(read({"--disk", "0"}).memory.disk, Bytes{});
  EXPECT_EQ(read({"--gpu", "24B"}).memory.gpu, Bytes{24});
  const test::TempDir dir;
  const std::string path = dir.write("some.toml", "[memory]\nram = 32\n");
  EXPECT_FAILS(read({"--config_file", path}), ErrorCode::input,
               "line 2: ram: 32 means 32 bytes; did you mean 32GB?");
}

TEST(MusubiFile, MayHoldAFewSettingsBesideFlags) {
  const test::TempDir dir;
  const std::string path = dir.write("some.toml", "[a]\nnetwork_alpha = 8\n[b]\nseed = 5\n");
  const TrainConfig c = read_config(std::vector<std::string>{
      "--config_file", path, "--dit", "x", "--dataset_config", "d.toml", "--output_dir", "o",
      "--output_name", "n", "--network_module", "networks.lora_wan"});
  EXPECT_EQ(c.dialect, Dialect::musubi);
  EXPECT_EQ(c.adapter.alpha, 8);
  EXPECT_EQ(c.seed, 5u);
}

TEST(MusubiFile, IsFlattenedAndFlagsWin) {
  const test::TempDir dir;
  const std::string path =
      dir.write("run.toml",
                "[paths]\ndit = 'low.safetensors'\ndataset_config = 'd.toml'\noutput_dir = 'out'\n"
                "[network]\nnetwork_dim = 8\nnetwork_args = ['loraplus_lr_ratio=2']\n[other.deep]\n"
                "sdpa = true\nfp8_base = true\nsplit_attn = false\nlearning_rate = 1e-4\n");
  const TrainConfig c = read_config(
      std::vector<std::string>{"--config_file", path, "--network-dim", "16", "--gpu", "8GB"});
  EXPECT_EQ(c.dialect, Dialect::musubi);
  EXPECT_EQ(c.source, path);
  EXPECT_EQ(c.dataset.named, path + " line 3: dataset_config");
  EXPECT_EQ(c.adapter.rank, 16);
  EXPECT_EQ(c.adapter.up_rate_ratio, 2);
  EXPECT_EQ(c.model.transformer_dtype, DType::f8_e4m3);
  EXPECT_EQ(c.schedule.learning_rate, 1e-4);
  EXPECT_EQ(c.memory.gpu, 8_GB);
  EXPECT_THAT(c.notes, ElementsAre(HasSubstr("line 9: sdpa: ")));
  const std::string typo = dir.write("typo.toml", "dit = 'x'\n[network]\nnetwork_dmi = 8\n");
  EXPECT_FAILS(read_config(typo), ErrorCode::input,
               "typo.toml line 3: network_dmi: unknown key, did you mean network_dim?");
  const std::string wrong = dir.write("wrong.toml", "dit = 'x'\nnetwork_dim = false\n");
  EXPECT_FAILS(read_config(wrong), ErrorCode::input, "wrong.toml line 2: network_dim: expected");
}

TEST(MusubiConfig, AScheduleThatLacksANumberIsToldBeforeTheFirstStep) {
  const TrainConfig c = read({"--lr_scheduler", "warmup_stable_decay", "--lr_warmup_steps", "10"});
  EXPECT_FAILS(schedule_of(c, 100), ErrorCode::usage, "needs the number of decay steps");
}

TEST(PythonLiteral, ReadsWhatPeopleWrite) {
  const auto value = [](std::string_view text) {
    return std::get<TomlValue>(parse_python_literal(text).value());
  };
  EXPECT_EQ(value("12").integer, 12);
  EXPECT_EQ(value(" -1e-3 ").real, -1e-3);
  EXPECT_TRUE(value("True").boolean);
  EXPECT_EQ(value("'a\\'b'").string, "a'b");
  EXPECT_EQ(value("'a\\.b'").string, "a\\.b");
  EXPECT_EQ(value("r'a\\\\b'").string, "a\\\\b");
  EXPECT_EQ(value("(1, 2,)").items.size(), 2u);
  EXPECT_EQ(value("[]").items.size(), 0u);
  EXPECT_EQ(value("0.9, .99").items.at(1).real, 0.99);
  EXPECT_EQ(value("1,").items.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<PythonNone>(*parse_python_literal("None")));
  for (const char* bad : {"", "[1", "1 2", ",1", "1,,2", "1, foo", "foo", "'a", "(,)", "1+1",
                          "Nonesuch", "[None]", "--1"}) {
    EXPECT_FALSE(parse_python_literal(bad).has_value()) << bad;
  }
  EXPECT_FALSE(parse_python_literal(std::string(100'000, '[')).has_value());
}

// As musubi-tuner has it: its constant schedules take no warm-up.
TEST(MusubiConfig, AConstantScheduleHasNoWarmup) {
  for (const char* steps : {"10", "0.1", "10%"}) {
    const auto error = test::error_of([&] { read({"--lr_warmup_steps", steps}); });
    ASSERT_TRUE(error) << steps;
    EXPECT_EQ(error->code(), ErrorCode::usage);
    EXPECT_THAT(error->what(), HasSubstr(fmt::format("--lr_warmup_steps {}: the schedule constant "
                                                     "has no warm-up",
                                                     steps)));
    EXPECT_EQ(error->advice().at(0).change, "--lr_scheduler constant_with_warmup");
  }
  EXPECT_FAILS(read({"--optimizer_type", "Adafactor", "--lr_scheduler", "adafactor:1e-3",
                     "--lr_warmup_steps", "10"}),
               ErrorCode::usage, "the schedule adafactor has no warm-up");
  const TrainConfig none = read({"--lr_warmup_steps", "0"});
  EXPECT_EQ(learning_rate(schedule_of(none, 10), 0), 2e-6);
  const TrainConfig with =
      read({"--lr_scheduler", "constant_with_warmup", "--lr_warmup_steps", "10"});
  EXPECT_EQ(learning_rate(schedule_of(with, 10), 5), 1e-6);
  const TrainConfig pieces = read({"--lr_scheduler", "piecewise_constant", "--lr_scheduler_args",
                                   "step_rules=1:100,0.1", "--lr_warmup_steps", "10"});
  EXPECT_EQ(learning_rate(schedule_of(pieces, 10), 0), 2e-6);
  EXPECT_THAT(pieces.notes,
              ElementsAre("--lr_warmup_steps: the schedule piecewise_constant has no warm-up"));
}

}  // namespace
}  // namespace ballast::train::config_musubi_test
