#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "tests/support/errors.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"
#include "train/config/config_dialects.h"
#include "train/config/enum_names.h"
#include "train/config/read_config.h"

namespace ballast::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

constexpr std::string_view kTop = "output_dir = 'out'\ndataset = 'd.toml'\nepochs = 3\n";
constexpr std::string_view kModel = "[model]\ntype = 'wan'\nckpt_path = 'm'\ndtype = 'bfloat16'\n";
constexpr std::string_view kAdapter = "[adapter]\ntype = 'lora'\nrank = 8\n";
constexpr std::string_view kOptimizer = "[optimizer]\ntype = 'adamw'\nlr = 1e-4\n";

// A small configuration with lines added to its parts.
struct Parts {
  std::string top = {}, model = {}, adapter = {}, optimizer = {}, rest = {};
  bool full = false;

  std::string text() const {
    return std::string(kTop) + top + std::string(kModel) + model +
           (full ? "" : std::string(kAdapter) + adapter) + std::string(kOptimizer) + optimizer +
           rest;
  }
};

TrainConfig read(const Parts& parts) {
  return read_diffusion_pipe(TomlFile::parse(parts.text(), "run.toml"), {});
}

TEST(DiffusionPipeConfig, HasItsTrainersDefaults) {
  const TrainConfig c = read({});
  EXPECT_EQ(c.dialect, Dialect::diffusion_pipe);
  EXPECT_EQ(c.method, Method::lora);
  EXPECT_EQ(c.adapter.alpha, 0);  // the rank
  EXPECT_EQ(c.adapter.dtype, DType::bf16);
  EXPECT_EQ(c.timesteps.time_offset, 0);
  EXPECT_EQ(c.timesteps.sampling, TimestepSampling::table_logit_normal);
  EXPECT_EQ(c.model.transformer_dtype, DType::bf16);
  EXPECT_EQ(c.save_dtype, DType::bf16);
  EXPECT_EQ(c.max_grad_norm, 1);
  EXPECT_TRUE(c.evaluate_before_first_step);
  EXPECT_EQ(c.lora_format, LoraFormat::comfy);
  EXPECT_EQ(c.schedule.style, ScheduleStyle::diffusion_pipe);
  EXPECT_EQ(c.schedule.kind, ScheduleKind::constant);
  EXPECT_EQ(c.memory.checkpointing, Checkpointing::automatic);
  EXPECT_EQ(c.keep_checkpoints, 3);
  EXPECT_EQ(c.max_steps, std::nullopt);
  EXPECT_THAT(c.notes, IsEmpty());
}

// transformer_dtype is of the weights that are trained, or of a teacher's, which are not.
TEST(DiffusionPipeConfig, ATeachersWeightsMayHaveATypeThatIsNotTrained) {
  Parts parts;
  parts.full = true;
  parts.model = "transformer_dtype = 'float8'\n";
  EXPECT_FAILS(read(parts), ErrorCode::input, "line 8: model.transformer_dtype: weights of type");
  parts.rest = "[distill]\nmethod = 'mse'\nlayers = 1\n";
  const TrainConfig c = read(parts);
  EXPECT_EQ(c.model.transformer_dtype, DType::f8_e4m3);
  EXPECT_EQ(trained_dtype(c), DType::bf16);
}

TEST(DiffusionPipeConfig, HonoursTopLevelKeys) {
  const TrainConfig c = read(
      {.top =
           "eval_datasets = ['a.toml', {name = 'b', config = 'c.toml'}]\nmax_steps = 9\n"
           "micro_batch_size_per_gpu = [[512, 4], [1024, 1]]\n"
           "image_micro_batch_size_per_gpu = 8\neval_micro_batch_size_per_gpu = 2\n"
           "image_eval_micro_batch_size_per_gpu = 6\n"
           "gradient_accumulation_steps = 5\ngradient_clipping = 0.5\nwarmup_steps = 7\n"
           "lr_scheduler = 'cosine'\nblocks_to_swap = 36\nactivation_checkpointing = true\n"
           "smooth_l1_beta = 0.25\nuncond_fraction = 0.1\neval_every_n_epochs = 1\n"
           "eval_every_n_steps = 10\neval_every_n_examples = 100\neval_before_first_step = false\n"
           "eval_gradient_accumulation_steps = 2\nsave_every_n_epochs = 2\nsave_every_n_steps = "
           "20\n"
           "save_every_n_examples = 200\ncheckpoint_every_n_epochs = 4\n"
           "checkpoint_every_n_minutes = 30\nsave_dtype = 'float32'\nsteps_per_print = 3\n"
           "logging_steps = 4\nx_axis_examples = true\nvideo_clip_mode = 'single_middle'\n"
           "resume_from_checkpoint = '20260101'\nregenerate_cache = true\npipeline_stages = 1\n"
           "seed = 5\nexperts = 'both'\non_nan = 'skip'\nkeep_checkpoints = 2\n"
           "lora_format = 'peft'\nmemory_line_steps = 50\nwebhook = false\n"
           "checkpoint_every_n_steps = 25\n",
       .model = "",
       .adapter = "",
       .optimizer = "",
       .rest = "[memory]\ngpu = '24GB'\nram = '1.5GiB'\ndisk = 1000000\npolicy = 'stream2'\n"
               "stream_blocks = 30\n"});
  EXPECT_EQ(c.output_dir, "out");
  EXPECT_EQ(c.dataset.config, "d.toml");
  EXPECT_THAT(c.dataset.named, HasSubstr(" line 2: dataset"));
  ASSERT_EQ(c.eval_datasets.size(), 2u);
  EXPECT_THAT(c.eval_datasets[1].named, HasSubstr(" line 4: eval_datasets"));
  EXPECT_EQ(c.eval_datasets[0].name, "eval0");
  EXPECT_EQ(c.eval_datasets[0].config, "a.toml");
  EXPECT_EQ(c.eval_datasets[1].name, "b");
  EXPECT_EQ(c.eval_datasets[1].config, "c.toml");
  EXPECT_EQ(c.epochs, 3);
  EXPECT_EQ(c.max_steps, 9);
  EXPECT_THAT(c.micro_batch.by_side, ElementsAre(Pair(512, 4), Pair(1024, 1)));
  EXPECT_EQ(c.image_micro_batch.plain, 8);
  EXPECT_EQ(c.eval_micro_batch.plain, 2);
  EXPECT_EQ(c.eval_image_micro_batch.plain, 6);
  EXPECT_EQ(c.gradient_accumulation, 5);
  EXPECT_EQ(global_batch(c), 20);
  EXPECT_EQ(c.max_grad_norm, 0.5);
  EXPECT_EQ(c.schedule.warmup_steps, 7);
  EXPECT_EQ(c.schedule.kind, ScheduleKind::cosine);
  EXPECT_EQ(c.memory.blocks_to_swap, 36);
  EXPECT_EQ(c.memory.checkpointing, Checkpointing::recompute);
  EXPECT_EQ(c.loss, Loss::smooth_l1);
  EXPECT_EQ(c.loss_delta, 0.25);
  EXPECT_EQ(c.uncond_fraction, 0.1);
  EXPECT_EQ(c.evaluate.epochs, 1);
  EXPECT_EQ(c.evaluate.steps, 10);
  EXPECT_EQ(c.evaluate.examples, 100);
  EXPECT_FALSE(c.evaluate_before_first_step);
  EXPECT_EQ(c.eval_gradient_accumulation, 2);
  EXPECT_EQ(c.save.epochs, 2);
  EXPECT_EQ(c.save.steps, 20);
  EXPECT_EQ(c.save.examples, 200);
  EXPECT_EQ(c.checkpoint.epochs, 4);
  EXPECT_EQ(c.checkpoint.steps, 25);
  EXPECT_EQ(c.checkpoint.minutes, 30);
  EXPECT_EQ(c.save_dtype, DType::f32);
  EXPECT_EQ(c.steps_per_print, 3);
  EXPECT_EQ(c.logging_steps, 4);
  EXPECT_TRUE(c.examples_on_x_axis);
  EXPECT_EQ(c.video_clip_mode, "single_middle");
  EXPECT_EQ(c.resume, "20260101");
  EXPECT_TRUE(c.regenerate_cache);
  EXPECT_EQ(c.seed, 5u);
  EXPECT_EQ(c.model.experts, Experts::both);
  EXPECT_EQ(c.on_nan, OnNan::skip);
  EXPECT_EQ(c.keep_checkpoints, 2);
  EXPECT_EQ(c.lora_format, LoraFormat::peft);
  EXPECT_EQ(c.memory_line_steps, 50);
  EXPECT_FALSE(c.webhook);
  EXPECT_EQ(c.memory.gpu, 24_GB);
  EXPECT_EQ(c.memory.ram, Bytes{1610612736});
  EXPECT_EQ(c.memory.disk, Bytes{1000000});
  EXPECT_EQ(c.memory.policy, "stream2");
  EXPECT_EQ(c.memory.stream_blocks, 30);
  EXPECT_THAT(c.notes, IsEmpty());
}

TEST(DiffusionPipeConfig, ShiftsByResolutionOnlyWithoutAShift) {
  const TrainConfig alone = read({.model = "flux_shift = true\n"});
  EXPECT_TRUE(alone.timesteps.flux_shift);
  EXPECT_THAT(alone.notes, IsEmpty());
  const TrainConfig both =
      read({.model = "timestep_sample_method = 'uniform'\nshift = 3\nflux_shift = true\n"
                     "sigmoid_scale = 2\n"});
  EXPECT_FALSE(both.timesteps.flux_shift);
  EXPECT_EQ(both.timesteps.shift, 3);
  EXPECT_THAT(both.notes, ElementsAre(HasSubstr("model.flux_shift (line "),
                                      HasSubstr("model.sigmoid_scale (line ")));
}

TEST(DiffusionPipeConfig, HonoursModelAndAdapterKeys) {
  const TrainConfig c =
      read({.top = "",
            .model = "transformer_path = 'x.safetensors'\ntransformer_dtype = 'float8_e5m2'\n"
                     "timestep_sample_method = 'logit_normal'\nsigmoid_scale = 1.5\nshift = 3\n"
                     "min_t = 0.1\nmax_t = 0.875\nboundary = 0.8\n"
                     "base_loras = ['a.safetensors', ['b.safetensors', 0.5]]\n",
            .adapter = "dtype = 'float32'\ndropout = 0.1\nexclude_modules = ['ffn.0']\n"
                       "init_from_existing = 'old'\nloraplus_lr_ratio = 4\n"});
  EXPECT_EQ(c.model.transformer, "x.safetensors");
  EXPECT_EQ(c.model.transformer_dtype, DType::f8_e5m2);
  EXPECT_EQ(c.model.boundary, 0.8);
  EXPECT_THAT(c.model.base_loras,
              ElementsAre(Pair("a.safetensors", 1.0), Pair("b.safetensors", 0.5)));
  EXPECT_EQ(c.timesteps.sampling, TimestepSampling::table_logit_normal);
  EXPECT_EQ(c.timesteps.sigmoid_scale, 1.5);
  EXPECT_EQ(c.timesteps.shift, 3);
  EXPECT_THAT(c.notes, IsEmpty());
  EXPECT_EQ(c.timesteps.min_t, 0.1);
  EXPECT_EQ(c.timesteps.max_t, 0.875);
  EXPECT_EQ(c.adapter.rank, 8);
  EXPECT_EQ(c.adapter.dtype, DType::f32);
  EXPECT_EQ(c.adapter.dropout, 0.1);
  EXPECT_THAT(c.adapter.exclude, ElementsAre("ffn.0"));
  EXPECT_FALSE(c.adapter.exclude_is_regex);
  EXPECT_EQ(c.adapter.init_from, "old");
  EXPECT_EQ(c.adapter.up_rate_ratio, 4);
  const TrainConfig regex = read({.adapter = "exclude_modules = '.*ffn.*'\n"});
  EXPECT_TRUE(regex.adapter.exclude_is_regex);
  EXPECT_THAT(regex.adapter.exclude, ElementsAre(".*ffn.*"));
  EXPECT_EQ(read({.full = true}).method, Method::full);
}

TEST(DiffusionPipeConfig, NotesEveryKeyWithoutEffectOnce) {
  const TrainConfig c = read(
      {.top = "partition_method = 'uniform'\npartition_split = [3]\npipeline_stages = 2\n"
              "disable_block_swap_for_eval = true\nreentrant_activation_checkpointing = true\n"
              "pseudo_huber_c = 0.5\ncaching_batch_size = 4\nmap_num_proc = 8\ncompile = true\n",
       .model = "llm_path = 't5'\ntext_encoder_fp8 = true\ncache_text_embeddings = false\n"
                "guidance = 1.0\n",
       .adapter = "decompose_factor = 4\nrank_dropout = 0.1\n",
       .optimizer = "fused = true\n",
       .rest = "[monitoring]\nenable_wandb = true\nwandb_api_key = 'SECRET'\n"
               "wandb_tracker_name = 'SECRET'\nwandb_run_name = 'SECRET'\n"});
  EXPECT_EQ(c.notes.size(), 18u);
  EXPECT_EQ(c.caching.batch_size, 4);
  EXPECT_THAT(c.caching.text_encoder, HasSubstr("t5"));
  for (const std::string& note : c.notes) {
    EXPECT_THAT(note, AllOf(HasSubstr("(line "), Not(HasSubstr("SECRET"))));
  }
  EXPECT_THAT(c.notes, testing::Contains(
                           AllOf(StartsWith("monitoring.enable_wandb"), HasSubstr("TensorBoard"))));
}

TEST(DiffusionPipeConfig, NamesLineAndNearestNameOfATypo) {
  const auto typo = [](const Parts& p, const char* expected) {
    EXPECT_FAILS(read(p), ErrorCode::input, expected);
  };
  typo({.top = "gradient_cliping = 1\n"},
       "run.toml line 4: unknown key \"gradient_cliping\", did you mean gradient_clipping?");
  typo({.model = "transfomer_dtype = 'float8'\n"},
       "run.toml line 8: unknown key \"transfomer_dtype\" in model, did you mean "
       "transformer_dtype?");
  typo({.adapter = "droput = 0.1\n"}, "line 11: unknown key \"droput\" in adapter");
  typo({.optimizer = "weigth_decay = 0.1\n"}, "did you mean weight_decay?");
  typo({.rest = "[memory]\ngpus = '1GB'\n"}, "did you mean gpu?");
  typo({.rest = "[monitoring]\nenable_wanbd = true\n"}, "did you mean enable_wandb?");
  typo({.rest = "[memroy]\ngpu = '1GB'\n"}, "unknown key \"memroy\", did you mean memory?");
}

TEST(DiffusionPipeConfig, ExplainsWrongValues) {
  const auto wrong = [](const Parts& p, const char* expected) {
    EXPECT_FAILS(read(p), ErrorCode::input, expected);
  };
  wrong({.top = "max_steps = 'ten'\n"}, "run.toml line 4: max_steps: expected an integer");
  wrong({.top = "max_steps = 0\n"}, "expected at least 1, found 0");
  wrong({.top = "lr_scheduler = 'cosin'\n"}, "expected one of constant, linear, cosine (cosine?)");
  wrong({.top = "activation_checkpointing = 'yes'\n"}, "expected true, false or 'unsloth'");
  wrong({.top = "micro_batch_size_per_gpu = [[512]]\n"}, "expected pairs");
  wrong({.top = "micro_batch_size_per_gpu = [[512, 1.5]]\n"}, "expected pairs");
  wrong({.top = "micro_batch_size_per_gpu = []\n"}, "expected pairs");
  wrong({.top = "eval_datasets = [{nam = 'x', config = 'y'}]\n"}, "{name, config}");
  wrong({.top = "video_clip_mode = 'multiple_overlapping'\n"}, "single_middle");
  wrong({.top = "save_dtype = 'int8'\n"},
        "expected one of float32, float16, bfloat16, float8, float8_e4m3fn, float8_e5m2, found "
        "\"int8\"");
  wrong({.top = "on_nan = 'go on'\n"}, "one of stop, skip");
  wrong({.model = "min_t = 0.9\nmax_t = 0.5\n"}, "line 9: model.max_t: no timestep lies in");
  wrong({.model = "timestep_sample_method = 'sigmoid'\n"}, "one of logit_normal, uniform");
  wrong({.top = "experts = 'both'\n", .model = "transformer_path = 'x'\n"}, "contradict");
  wrong({.adapter = "alpha = 16\n"}, "line 11: adapter.alpha: diffusion-pipe has no alpha");
  wrong({.adapter = "dtype = 'float8'\n"}, "cannot be trained");
  wrong({.model = "transformer_dtype = 'float8'\n", .full = true}, "cannot be trained");
  EXPECT_FAILS(
      read_diffusion_pipe(
          TomlFile::parse("output_dir = 'o'\ndataset = 'd'\nepochs = 1\n[model]\ntype = 'wan'\n"
                          "ckpt_path = 'm'\ndtype = 'float16'\n" +
                              std::string(kOptimizer),
                          "run.toml"),
          {}),
      ErrorCode::input, "run.toml line 7: model.dtype: weights of type f16");
  wrong({.rest = "[memory]\ngpu = 'much'\n"},
        "memory.gpu: expected a size such as 24GB, found \"much\"");
  wrong({.rest = "[memory]\ngpu = -1\n"}, "expected a string, found -1");
  wrong({.rest = "[memory]\npolicy = 'best'\n"}, "one of auto, resident");
}

TEST(DiffusionPipeConfig, ASizeWithoutAUnitIsAskedAbout) {
  for (const char* key : {"gpu", "ram", "disk"}) {
    for (const char* value : {"24", "'24'"}) {
      EXPECT_FAILS(read({.rest = fmt::format("[memory]\n{} = {}\n", key, value)}), ErrorCode::input,
                   fmt::format("memory.{}: 24 means 24 bytes; did you mean 24GB?", key));
    }
  }
  const MemoryConfig m = read({.rest = "[memory]\ngpu = '24B'\nram = 1000000\ndisk = 0\n"}).memory;
  EXPECT_EQ(m.gpu, Bytes{24});
  EXPECT_EQ(m.ram, Bytes{1'000'000});
  EXPECT_EQ(m.disk, Bytes{});
}

TEST(DiffusionPipeConfig, FactorsOfTypeFloat16AreTrainedAsFloat32) {
  const TrainConfig c = read({.top = "save_dtype = 'float16'\n", .adapter = "dtype = 'float16'\n"});
  EXPECT_EQ(c.adapter.dtype, DType::f32);
  EXPECT_EQ(c.save_dtype, DType::f16);
  EXPECT_THAT(c.notes, ElementsAre(HasSubstr("float16 are trained as float32")));
}

TEST(DiffusionPipeConfig, SaysWhichRequiredKeyIsMissing) {
  const auto without = [](std::string_view line) {
    std::string text = Parts().text();
    text.erase(text.find(line), line.size());
    return read_diffusion_pipe(TomlFile::parse(text, "run.toml"), {});
  };
  EXPECT_FAILS(without("output_dir = 'out'\n"), ErrorCode::input, "the key output_dir is missing");
  EXPECT_FAILS(without("dataset = 'd.toml'\n"), ErrorCode::input, "the key dataset is missing");
  EXPECT_FAILS(without("epochs = 3\n"), ErrorCode::input, "the key epochs is missing");
  EXPECT_FAILS(without("dtype = 'bfloat16'\n"), ErrorCode::input, "[model]: the key dtype");
  EXPECT_FAILS(without("rank = 8\n"), ErrorCode::input, "[adapter]: the key rank");
  EXPECT_FAILS(without("lr = 1e-4\n"), ErrorCode::input, "[optimizer]: the key lr");
  EXPECT_FAILS(without(kOptimizer), ErrorCode::input, "the section [optimizer] is missing");
  EXPECT_FAILS(without(kModel), ErrorCode::input, "the section [model] is missing");
}

TEST(DiffusionPipeConfig, MeetsBrokenTextWithATypedError) {
  const std::string text = test::read_whole(test::golden_path("diffusion_pipe_24gb/main.toml"));
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string broken = text;
    for (auto n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % broken.size();
      switch (random() % 3) {
        case 0:
          broken[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          broken.erase(at, 1 + random() % 8);
          break;
        default:
          broken.insert(at, broken.substr(random() % broken.size(), random() % 16));
      }
    }
    const auto error =
        test::error_of([&] { (void)read_diffusion_pipe(TomlFile::parse(broken, "run.toml"), {}); });
    if (!error) continue;  // it hit a comment or a path
    ++refused;
    EXPECT_EQ(error->code(), ErrorCode::input) << error->what();
    EXPECT_THAT(error->what(), HasSubstr("run.toml"));
  }
  EXPECT_GT(refused, 200);
}

TEST(DiffusionPipeConfig, NeverRepeatsAWebhookAddress) {
  const auto error = test::error_of([] { read({.top = "webhook = 'https://host/SECRET'\n"}); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::input);
  EXPECT_THAT(error->what(), Not(HasSubstr("SECRET")));
  ASSERT_EQ(error->advice().size(), 1u);
  EXPECT_THAT(error->advice()[0].change, HasSubstr("BALLAST_WEBHOOK_URL"));
}

TrainConfig with_optimizer(const std::string& type, const std::string& lines,
                           const std::string& adapter = "", const std::string& top = "") {
  Parts p{.top = top, .model = "", .adapter = adapter, .optimizer = lines, .rest = ""};
  std::string text = p.text();
  text.replace(text.find("type = 'adamw'"), 14, "type = '" + type + "'");
  return read_diffusion_pipe(TomlFile::parse(text, "run.toml"), {});
}

TEST(DiffusionPipeOptimizer, HasTheDefaultsOfEachType) {
  const OptimizerOptions torch = with_optimizer("AdamW", "").optimizer;
  EXPECT_EQ(torch.kind, OptimizerKind::adamw);
  EXPECT_EQ(torch.beta2, 0.999);
  EXPECT_EQ(torch.eps, 1e-8);
  EXPECT_EQ(torch.weight_decay, 0.01);
  EXPECT_EQ(torch.state_dtype, DType::bf16);
  EXPECT_EQ(torch.rounding, UpdateRounding::nearest);
  const OptimizerOptions optimi = with_optimizer("adamw_optimi", "").optimizer;
  EXPECT_EQ(optimi.kind, OptimizerKind::adamw_optimi);
  EXPECT_EQ(optimi.beta2, 0.99);
  EXPECT_EQ(optimi.eps, 1e-6);
  EXPECT_EQ(optimi.rounding, UpdateRounding::kahan);
  const OptimizerOptions wide = with_optimizer("adamw_optimi", "", "dtype = 'float32'\n").optimizer;
  EXPECT_EQ(wide.rounding, UpdateRounding::nearest);
  EXPECT_EQ(wide.state_dtype, DType::f32);
  const OptimizerOptions stable = with_optimizer("StableAdamW", "").optimizer;
  EXPECT_EQ(stable.kind, OptimizerKind::stableadamw);
  EXPECT_EQ(stable.beta2, 0.99);
  EXPECT_EQ(stable.eps, 1e-6);
  EXPECT_EQ(stable.weight_decay, 0.01);
  EXPECT_EQ(stable.rounding, UpdateRounding::kahan);
  EXPECT_EQ(with_optimizer("AdamW8bit", "").optimizer.kind, OptimizerKind::adamw8bit);
  const OptimizerOptions kahan = with_optimizer("adamw8bitkahan", "stabilize = true\n").optimizer;
  EXPECT_EQ(kahan.kind, OptimizerKind::adamw8bit_kahan);
  EXPECT_TRUE(kahan.stabilize);
  const OptimizerOptions sgd = with_optimizer("sgd", "momentum = 0.9\n").optimizer;
  EXPECT_EQ(sgd.momentum, 0.9);
  EXPECT_EQ(sgd.weight_decay, 0);
  const TrainConfig offload = with_optimizer("offload", "");
  EXPECT_EQ(offload.optimizer.kind, OptimizerKind::adamw);
  EXPECT_EQ(offload.notes.size(), 1u);
  const OptimizerOptions factored =
      with_optimizer("adafactor",
                     "relative_step = false\nscale_parameter = false\n"
                     "eps = [1e-20, 1e-2]\ndecay_rate = -0.5\n")
          .optimizer;
  EXPECT_FALSE(factored.relative_step);
  EXPECT_FALSE(factored.scale_parameter);
  EXPECT_EQ(factored.eps_rows, 1e-20);
  EXPECT_EQ(factored.eps_scale, 1e-2);
  EXPECT_EQ(factored.decay_rate, -0.5);
}

TEST(DiffusionPipeOptimizer, KnowsOptimizersByTheirClasses) {
  const auto kind = [](const char* type) { return with_optimizer(type, "").optimizer.kind; };
  for (const char* type : {"bitsandbytes.optim.AdamW8bit", "bitsandbytes.optim.PagedAdamW8bit",
                           "bnb.optim.PagedAdamW8bit", "PagedAdamW8bit"}) {
    EXPECT_EQ(kind(type), OptimizerKind::adamw8bit) << type;
  }
  for (const char* type :
       {"torch.optim.AdamW", "bitsandbytes.optim.AdamW", "bitsandbytes.optim.PagedAdamW32bit"}) {
    EXPECT_EQ(kind(type), OptimizerKind::adamw) << type;
  }
  EXPECT_EQ(kind("torch.optim.SGD"), OptimizerKind::sgd);
  EXPECT_EQ(kind("optimi.StableAdamW"), OptimizerKind::stableadamw);
  EXPECT_EQ(kind("transformers.Adafactor"), OptimizerKind::adafactor);
  EXPECT_THAT(with_optimizer("bitsandbytes.optim.PagedAdamW8bit", "").notes,
              ElementsAre(HasSubstr("AdamW8bit; the plan decides where its state lives")));
  for (const char* type : {"torch.optim.Adafactor", "torch.optim.PagedAdamW", "torch.optim.Adam",
                           "bitsandbytes.optim.PagedSGD", "bitsandbytes.optim.Lion8bit"}) {
    EXPECT_FAILS(with_optimizer(type, ""), ErrorCode::input, "is not supported");
  }
}

TEST(DiffusionPipeConfig, TellsAWebhookOfProgressEveryHalfHourOrAsItSays) {
  EXPECT_EQ(with_optimizer("adamw", "").webhook_minutes, 30);
  EXPECT_EQ(with_optimizer("adamw", "", "", "webhook_every_minutes = 5\n").webhook_minutes, 5);
  EXPECT_EQ(with_optimizer("adamw", "", "", "webhook_every_minutes = 0\n").webhook_minutes, 0);
  EXPECT_FAILS(with_optimizer("adamw", "", "", "webhook_every_minutes = -1\n"), ErrorCode::input,
               "webhook_every_minutes");
}

TEST(DiffusionPipeOptimizer, HonoursItsKeys) {
  const TrainConfig c =
      with_optimizer("adamw_optimi",
                     "betas = [0.8, 0.95]\nweight_decay = 0.1\neps = 1e-7\nkahan_sum = false\n"
                     "ema_decay = 0.99\nstate_dtype = 'float32'\n");
  EXPECT_EQ(c.schedule.learning_rate, 1e-4);
  EXPECT_EQ(c.optimizer.beta1, 0.8);
  EXPECT_EQ(c.optimizer.beta2, 0.95);
  EXPECT_EQ(c.optimizer.weight_decay, 0.1);
  EXPECT_EQ(c.optimizer.eps, 1e-7);
  EXPECT_EQ(c.optimizer.rounding, UpdateRounding::nearest);
  EXPECT_EQ(c.optimizer.ema_decay, 0.99);
  EXPECT_EQ(c.optimizer.state_dtype, DType::f32);
  EXPECT_FALSE(c.optimizer.kahan_unasked);
  EXPECT_THAT(c.notes, ElementsAre(HasSubstr("optimizer.state_dtype (line 19) has no effect")));
  const TrainConfig decoupled =
      with_optimizer("stableadamw", "decouple_lr = true\nweight_decay = 1e-5\nmax_lr = 2e-4\n");
  EXPECT_DOUBLE_EQ(decoupled.optimizer.weight_decay, 1e-5 / 2e-4);
  EXPECT_DOUBLE_EQ(with_optimizer("adamw_optimi", "decouple_lr = true\nweight_decay = 1e-5\n")
                       .optimizer.weight_decay,
                   1e-5 / 1e-4);
  EXPECT_THAT(with_optimizer("stableadamw", "max_lr = 2e-4\n").notes,
              ElementsAre(HasSubstr("optimizer.max_lr (line 14) has no effect")));
  EXPECT_THAT(with_optimizer("adamw", "rounding = 'kahan'\n", "dtype = 'float32'\n").notes,
              ElementsAre(HasSubstr("optimizer.rounding (line")));
  EXPECT_EQ(with_optimizer("adamw", "rounding = 'stochastic'\n").optimizer.rounding,
            UpdateRounding::stochastic);
  const TrainConfig half =
      with_optimizer("adamw", "beta2_half_life = 1000\n", "", "gradient_accumulation_steps = 4\n");
  EXPECT_DOUBLE_EQ(half.optimizer.beta2, std::pow(0.5, 4.0 / 1000));
  const TrainConfig released = with_optimizer("adamw", "gradient_release = true\n");
  EXPECT_EQ(released.max_grad_norm, 0);
  EXPECT_THAT(released.notes, ElementsAre(HasSubstr("gradient_release (line 14)")));
  const TrainConfig constant = with_optimizer(
      "adamw", "", "", "force_constant_lr = 3e-5\nlr_scheduler = 'cosine'\nwarmup_steps = 5\n");
  EXPECT_EQ(constant.schedule.learning_rate, 3e-5);
  EXPECT_EQ(constant.schedule.kind, ScheduleKind::constant);
  EXPECT_EQ(constant.schedule.warmup_steps, 0);
  EXPECT_THAT(constant.notes,
              ElementsAre(HasSubstr("lr_scheduler (line "), HasSubstr("warmup_steps (line ")));
}

// Any schedule is warmed up there, a constant one too.
TEST(DiffusionPipeOptimizer, WarmsUpAConstantSchedule) {
  const TrainConfig c =
      with_optimizer("adamw", "", "", "lr_scheduler = 'constant'\nwarmup_steps = 4\n");
  const ScheduleOptions s = schedule_of(c, 100);
  const double rate = s.learning_rate;
  EXPECT_DOUBLE_EQ(learning_rate(s, 0), rate / 4);
  EXPECT_DOUBLE_EQ(learning_rate(s, 2), rate * (0.25 + 0.75 * 2 / 4));
  EXPECT_DOUBLE_EQ(learning_rate(s, 4), rate);
  EXPECT_DOUBLE_EQ(learning_rate(s, 90), rate);
  EXPECT_THAT(c.notes, IsEmpty());
}

TEST(DiffusionPipeOptimizer, RefusesWhatItDoesNotHave) {
  EXPECT_FAILS(with_optimizer("Prodigy", ""), ErrorCode::input,
               "run.toml line 12: optimizer.type: the optimizer \"Prodigy\" is not supported, "
               "expected one of adamw, adamw_optimi, stableadamw, AdamW8bit, AdamW8bitKahan, "
               "adafactor, sgd");
  EXPECT_FAILS(with_optimizer("automagic", ""), ErrorCode::input, "is not supported");
  EXPECT_FAILS(with_optimizer("adamw", "amsgrad = true\n"), ErrorCode::input, "amsgrad");
  EXPECT_FAILS(with_optimizer("adamw", "betas = [0.9]\n"), ErrorCode::input, "two numbers");
  EXPECT_FAILS(with_optimizer("adamw", "betas = [0.9, 1.0]\n"), ErrorCode::input, "two numbers");
  EXPECT_FAILS(with_optimizer("adamw", "ema_decay = 1\n"), ErrorCode::input, "between 0 and 1");
  EXPECT_FAILS(with_optimizer("adamw", "stabilize = true\n"), ErrorCode::input, "unknown key");
}

TEST(BatchSizes, TakeTheNearestSideAndTheFirstOfTies) {
  const BatchSizes sizes{{{512, 4}, {768, 2}, {1024, 1}}, 4};
  EXPECT_EQ(sizes.for_size(512, 512), 4);
  EXPECT_EQ(sizes.for_size(640, 640), 4);  // 128 from both
  EXPECT_EQ(sizes.for_size(1280, 720), 1);
  EXPECT_EQ(BatchSizes({{}, 3}).for_size(9, 9), 3);
}

TEST(ScheduleOfConfig, RunsOverAllEpochs) {
  TrainConfig c;
  c.epochs = 4;
  c.max_steps = 10;
  EXPECT_EQ(total_steps(c, 100), 10);
  EXPECT_EQ(schedule_of(c, 100).total_steps, 400);
  c.schedule.style = ScheduleStyle::transformers;
  c.warmup_share = 0.5;
  EXPECT_EQ(schedule_of(c, 100).total_steps, 10);
  EXPECT_EQ(schedule_of(c, 100).warmup_steps, 5);
}

}  // namespace
}  // namespace ballast::train
