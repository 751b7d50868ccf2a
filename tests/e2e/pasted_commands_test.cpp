// The command lines of trainers as their documents give them, pasted behind `ballast plan`,
// `ballast train` and the like: launchers, scripts, environment assignments and all.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "core/to_size.h"
#include "io/media_writer.h"
#include "tests/e2e/training_process.h"
#include "tests/support/tensor_file.h"
#include "tests/support/tiny_parts.h"
#include "tests/support/tiny_text_model.h"

namespace ballast::test {
namespace {

namespace fs = std::filesystem;
using support::TinyTraining;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Environment = std::vector<std::pair<std::string, std::string>>;

// Plans of a machine whose free memory changes differ; these do not.
const std::string kMachine = " --ram 4GB --device cpu";

// A folder to work in. `paste` lets a shell read the line, as it does for people.
class Pasted : public ::testing::Test {
 protected:
  Finished paste(const std::string& command, const std::string& line,
                 const Environment& environment = {}) const {
    const std::string folder = dir_.path(), state = dir_.path("state");
    Finished f = run_program(
        "/bin/sh", {"-c", "exec \"$0\" " + command + " " + line, std::string(BALLAST_BINARY)},
        Stdout::captured, [&] {
          if (::chdir(folder.c_str()) != 0) ::_exit(126);
          ::setenv("XDG_STATE_HOME", state.c_str(), 1);
          for (const auto& [name, value] : environment) {
            ::setenv(name.c_str(), value.c_str(), 1);
          }
        });
    // The disk's free space differs from one moment to the next.
    if (const std::size_t at = f.out.find("files of the run"); at != std::string::npos) {
      f.out.erase(at, f.out.find('\n', at) - at);
    }
    return f;
  }
  // What the plan of the same arguments without a launcher prints.
  void expect_plan(const Finished& f, const std::string& plain) const {
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_EQ(f.out, paste("plan", plain).out);
    EXPECT_THAT(f.out, Not(HasSubstr("{}")));
  }

  TempDir dir_;
};

class PastedDiffusionPipe : public Pasted {
 protected:
  PastedDiffusionPipe() { run_.add_clips(2, {4, 1, 4, 4}); }
  TinyTraining run_;
  std::string config_ = run_.write_config();
};

TEST_F(PastedDiffusionPipe, DeepspeedWithAssignmentsInFront) {
  const std::string plain = "--deepspeed --config " + config_ + kMachine;
  const std::string line = "train.py " + plain;
  const Finished f =
      paste("plan", "NCCL_P2P_DISABLE=\"1\" HF_TOKEN=hunter2 deepspeed --num_gpus=1 " + line);
  expect_plan(f, plain);
  EXPECT_THAT(f.err, AllOf(HasSubstr("ignored: NCCL_P2P_DISABLE, HF_TOKEN (to set environment "
                                     "variables, write them before `ballast`)\n"),
                           HasSubstr("ignored: launcher option --num_gpus\n"),
                           Not(HasSubstr("hunter2")), Not(HasSubstr("one GPU is used"))));
  for (const char* launcher :
       {"deepspeed ", "deepspeed --num_gpus=1 --master_port 29501 ", "python ", "python3 -u ",
        "/usr/bin/python3.11 -X faulthandler ", "torchrun --standalone --nproc_per_node 1 ",
        "torchrun --nproc-per-node=gpu ", "python -m torch.distributed.run --nproc_per_node=1 ",
        "python3 -m torch.distributed.launch --use_env ", "python -m deepspeed.launcher.runner ",
        "uv run ", "uv run --with flash-attn python ", "env CUDA_VISIBLE_DEVICES=0 python ",
        "accelerate launch --num_processes 1 --config_file accelerate.yaml ", "../diffusion-pipe/",
        ""}) {
    const Finished same = paste("plan", launcher + line);
    EXPECT_EQ(same.exit_code, 0) << launcher << same.err;
    EXPECT_EQ(same.out, f.out) << launcher;
  }
  // Without a script, and with a command of ours.
  for (const std::string& other :
       {"deepspeed --num_gpus 1 " + plain, "deepspeed --num_gpus=1 ballast plan " + plain,
        "ballast plan " + plain, "python -m train " + plain}) {
    const Finished same = paste("plan", other);
    EXPECT_EQ(same.exit_code, 0) << other << same.err;
    EXPECT_EQ(same.out, f.out) << other;
  }
}

TEST_F(PastedDiffusionPipe, SaysThatOneGpuIsUsed) {
  const std::string line = " train.py --deepspeed --config " + config_;
  for (const auto& [launcher, asked] : std::vector<std::pair<std::string, std::string>>{
           {"deepspeed --num_gpus=8", "--num_gpus 8"},
           {"torchrun --nproc_per_node 2", "--nproc_per_node 2"},
           {"torchrun --nproc-per-node=4 --nnodes=2:3", "--nproc_per_node 4, --nnodes 2"},
           {"accelerate launch --multi_gpu --num_processes 2", "--num_processes 2"},
           {"WORLD_SIZE=2 python", "WORLD_SIZE=2"}}) {
    const Finished f = paste("plan", launcher + line);
    EXPECT_EQ(f.exit_code, 0) << f.err;
    EXPECT_THAT(f.err,
                HasSubstr("one GPU is used (" + asked + "): several GPUs are not supported"));
  }
  EXPECT_THAT(
      paste("plan", config_ + " --num_gpus 8").out + paste("plan", config_ + " --num_gpus 8").err,
      HasSubstr("--num_gpus 8: one GPU is used"));
}

TEST_F(PastedDiffusionPipe, ItsFlagsAreTakenOrAnswered) {
  const std::string line = "deepspeed --num_gpus=1 train.py --deepspeed --config " + config_;
  for (const char* flag :
       {"--reset_dataloader", "--reset_optimizer", "--reset_optimizer_params", "--regenerate_cache",
        "--trust_cache", "--i_know_what_i_am_doing", "--master_port 29500", "--local_rank 0"}) {
    const Finished f = paste("plan", line + " " + flag);
    EXPECT_EQ(f.exit_code, 0) << flag << f.err;
  }
  for (const char* flag : {"--dump_dataset x", "--test_sample"}) {
    const Finished f = paste("plan", line + " " + flag);
    EXPECT_EQ(f.exit_code, 2) << flag;
    EXPECT_THAT(f.err, HasSubstr("not offered")) << flag;
  }
}

// torchrun --no_python --nproc_per_node 2 ballast train run.toml
TEST_F(PastedDiffusionPipe, TwoProcessesOfOneJobAreOneRun) {
  const auto process = [&](const char* rank) {
    return paste("train", config_, {{"RANK", rank}, {"LOCAL_RANK", rank}, {"WORLD_SIZE", "2"}});
  };
  const Finished second = process("1");
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_EQ(second.out, "");
  EXPECT_THAT(second.err, AllOf(HasSubstr("ended without doing anything"),
                                HasSubstr("(RANK=1, WORLD_SIZE=2)")));
  EXPECT_FALSE(fs::exists(run_.path("out")));
  const Finished first = process("0");
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("finished after 2 steps"));
  EXPECT_THAT(first.err, HasSubstr("one GPU is used (WORLD_SIZE=2)"));
  EXPECT_EQ(process("1").exit_code, 0);
  EXPECT_EQ(train::runs_in(run_.path("out")).size(), 1u);
  // A process alone, and one that asks for help, are no part of a job.
  EXPECT_THAT(paste("train", config_, {{"RANK", "1"}, {"WORLD_SIZE", "1"}}).out,
              HasSubstr("finished after 2 steps"));
  EXPECT_THAT(paste("train", "--help", {{"RANK", "1"}, {"WORLD_SIZE", "2"}}).out,
              HasSubstr("--max_steps"));
}

TEST_F(PastedDiffusionPipe, TwoCommandsAreNotGuessed) {
  const Finished f = paste("train", "ballast plan " + config_);
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err,
              AllOf(HasSubstr("two commands, train and plan"), HasSubstr("1. ballast plan ...")));
  for (const char* line : {"deepspeed --num_gpus=1 train.py", "NCCL_P2P_DISABLE=1 python x.py",
                           "accelerate launch x.py", "train.py --config x.toml"}) {
    const Finished none = paste("", line);
    EXPECT_EQ(none.exit_code, 2) << line;
    EXPECT_THAT(none.err,
                AllOf(HasSubstr("first say what to do with it"), HasSubstr("ballast train ...")))
        << line;
  }
}

// Files may be called what they like.
TEST_F(PastedDiffusionPipe, FilesAreNoAssignmentsAndNoScripts) {
  fs::copy(run_.model_path(), dir_.path("epoch=3.safetensors"));
  EXPECT_THAT(paste("inspect", "epoch=3.safetensors").out, HasSubstr("Wan diffusion transformer"));
  fs::copy(run_.model_path(), dir_.path("EPOCH=3.safetensors"));
  EXPECT_EQ(paste("inspect", "EPOCH=3.safetensors").exit_code, 0);
}

class PastedMusubi : public Pasted {
 protected:
  PastedMusubi() {
    support::write_parts(dir_, run_.config());
    fs::create_directories(dir_.path("clips"));
    dir_.write("path/to/toml",
               "[general]\nresolution = [32, 32]\ncaption_extension = '.txt'\nbatch_size = 1\n"
               "[[datasets]]\nvideo_directory = 'clips'\ncache_directory = 'cache'\n"
               "target_frames = [5]\n");
    fs::copy(run_.model_path(), dir_.path("path/to/wan2.1_xxx_bf16.safetensors"));
  }

  void add_clip(const std::string& name) {
    const auto writer = open_media_writer(dir_.path("clips/" + name + ".mp4"),
                                          {.width = 48, .height = 40, .rate = {16, 1}});
    for (int t = 0; t < 6; ++t) {
      writer->add(std::vector<std::uint8_t>(48 * 40 * 3, static_cast<std::uint8_t>(30 * t)));
    }
    writer->finish();
    dir_.write("clips/" + name + ".txt", "a clip bcd");
  }
  std::vector<std::string> cached(std::string_view suffix) const {
    std::vector<std::string> names;
    std::error_code none;
    for (const auto& f : fs::directory_iterator(dir_.path("cache"), none)) {
      if (f.path().string().ends_with(suffix)) names.push_back(f.path().filename().string());
    }
    return names;
  }

  // As docs/wan.md of musubi-tuner has it.
  const std::string flags_ =
      " --task t2v-1.3B --dit path/to/wan2.1_xxx_bf16.safetensors --dataset_config path/to/toml "
      "--sdpa --mixed_precision bf16 --fp8_base --optimizer_type adamw8bit --learning_rate 2e-4 "
      "--gradient_checkpointing --max_data_loader_n_workers 2 --persistent_data_loader_workers "
      "--network_module networks.lora_wan --network_dim 32 --timestep_sampling shift "
      "--discrete_flow_shift 3.0 --max_train_epochs 16 --save_every_n_epochs 1 --seed 42 "
      "--output_dir path/to/output_dir --output_name name-of-lora" +
      kMachine;
  TinyTraining run_;
};

TEST_F(PastedMusubi, AccelerateLaunch) {
  const std::string script = "src/musubi_tuner/wan_train_network.py";
  const Finished f = paste("plan",
                           "accelerate launch --num_cpu_threads_per_process 1 --mixed_precision "
                           "bf16 " +
                               script + " \\\n   " + flags_);
  expect_plan(f, flags_);
  EXPECT_THAT(f.err, HasSubstr("ignored: launcher option --num_cpu_threads_per_process\n"));
  for (const std::string& launcher :
       {"accelerate launch --num_processes 1 " + script, "python " + script,
        "uv run accelerate launch " + script,
        std::string("accelerate launch -m musubi_tuner.wan_train_network"),
        "python -m accelerate.commands.launch --num_cpu_threads_per_process 1 " + script,
        std::string("accelerate launch --num_cpu_threads_per_process 1")}) {
    expect_plan(paste("plan", launcher + flags_), flags_);
  }
  // A line that was copied with its quotes, and one with the ends of lines of another system.
  expect_plan(paste("plan", "'accelerate launch " + script + " \\\n" + flags_ + "'"), flags_);
  expect_plan(paste("plan", "accelerate launch ^ " + script + " ^" + flags_), flags_);
  EXPECT_THAT(paste("plan", "accelerate launch --num_processes 2 " + script + flags_).err,
              HasSubstr("one GPU is used (--num_processes 2)"));
}

// --mixed_precision of the launcher counts where the script has none.
TEST_F(PastedMusubi, PrecisionOfTheLauncher) {
  const std::string launcher =
      "accelerate launch --mixed_precision fp8 src/musubi_tuner/wan_train_network.py";
  const Finished f = paste(
      "plan", launcher + std::regex_replace(flags_, std::regex("--mixed_precision bf16 "), ""));
  EXPECT_EQ(f.exit_code, 2);
  EXPECT_THAT(f.err, HasSubstr("--mixed_precision: expected one of no, fp16"));
  expect_plan(paste("plan", launcher + flags_), flags_);
}

TEST_F(PastedMusubi, QuotesReachTheirFlags) {
  const Finished f =
      paste("plan", "accelerate launch wan_train_network.py" + flags_ +
                        " --optimizer_args \"weight_decay=0.1\" \"betas=(0.9, 0.95)\""
                        " --network_args 'exclude_patterns=[r\".*ffn.*\"]'");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_NE(f.out, paste("plan", flags_).out);  // fewer matrices are trained
}

TEST_F(PastedMusubi, FlagsWithoutAMeaningAreNamed) {
  const Finished f = paste(
      "plan",
      "accelerate launch wan_train_network.py" + flags_ +
          " --compile --compile_backend inductor --compile_mode default --compile_dynamic auto "
          "--compile_fullgraph --compile_cache_size_limit 32 --dynamo_backend NO --dynamo_mode "
          "default --dynamo_fullgraph --dynamo_dynamic --cuda_allow_tf32 --cuda_cudnn_benchmark "
          "--ddp_timeout 30 --ddp_gradient_as_bucket_view --ddp_static_graph --log_config "
          "--huggingface_repo_id me/x --huggingface_token hunter2 --async_upload "
          "--show_timesteps image");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  const std::string all = f.out + f.err;
  for (const char* flag : {"--compile", "--dynamo_backend", "--cuda_allow_tf32",
                           "--cuda_cudnn_benchmark", "--ddp_timeout", "--log_config",
                           "--huggingface_token", "--async_upload", "--show_timesteps"}) {
    // Flags with one reason share a note.
    const std::regex named(std::string(flag) + "(,[^:]*)?:\\s+ignored: ");
    EXPECT_TRUE(std::regex_search(all, named)) << flag << " in " << all;
  }
  EXPECT_THAT(all, Not(HasSubstr("hunter2")));
}

// The two commands of musubi-tuner, one after the other, then training on what they cached.
TEST_F(PastedMusubi, CachesLatentsAndTextsWithACommandEach) {
  if (!media_available()) GTEST_SKIP() << "built without media";
  add_clip("one");
  add_clip("two");
  fs::copy(dir_.path("vae.safetensors"), dir_.path("path/to/wan_vae.safetensors"));
  fs::copy(dir_.path("t5.safetensors"), dir_.path("path/to/models_t5.safetensors"));
  fs::copy(dir_.path("tokenizer/spiece.model"), dir_.path("path/to/spiece.model"));
  const Finished latents = paste("cache",
                                 "python src/musubi_tuner/wan_cache_latents.py --dataset_config "
                                 "path/to/toml --vae path/to/wan_vae.safetensors --vae_cache_cpu "
                                 "--device cpu --skip_existing --keep_cache --num_workers 1");
  ASSERT_EQ(latents.exit_code, 0) << latents.err;
  EXPECT_THAT(latents.err, HasSubstr("captions are not encoded: no text encoder is given (--t5"));
  EXPECT_EQ(cached("_wan.safetensors").size(), 2u);
  EXPECT_EQ(cached("_te.safetensors").size(), 0u);
  const Finished texts =
      paste("cache",
            "python src/musubi_tuner/wan_cache_text_encoder_outputs.py --dataset_config "
            "path/to/toml  --t5 path/to/models_t5.safetensors --batch_size 16 --fp8_t5 "
            "--tokenizer path/to/spiece.model --device cpu");
  ASSERT_EQ(texts.exit_code, 0) << texts.err;
  EXPECT_THAT(texts.err, HasSubstr("media are not encoded: no VAE is given (--vae FILE)"));
  EXPECT_EQ(cached("_wan.safetensors").size(), 2u);
  EXPECT_EQ(cached("_wan_te.safetensors").size(), 2u);
  const Finished trained =
      paste("train",
            "accelerate launch --num_cpu_threads_per_process 1 --mixed_precision bf16 "
            "src/musubi_tuner/wan_train_network.py --task t2v-1.3B --dit "
            "path/to/wan2.1_xxx_bf16.safetensors --dataset_config path/to/toml --sdpa "
            "--network_module networks.lora_wan --network_dim 4 --max_train_epochs 1 "
            "--output_dir out --output_name pasted --device cpu");
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("finished after 2 steps"));
  EXPECT_TRUE(fs::exists(dir_.path("out/pasted.safetensors")));
}

class PastedFlowMatching : public Pasted {
 protected:
  PastedFlowMatching() {
    fs::create_directories(dir_.path("models"));
    fs::copy(run_.model_path(), dir_.path("models/wan2.2_ti2v_5B_fp16.safetensors"));
    for (const char* name : {"a", "b"}) {
      dir_.write(fmt::format("dataset/{}.mp4", name), "not read: its latent is there");
      support::TensorFile text, latent;
      text.add("embeddings", DType::f32, {512, run_.config().text_dim}, 1, 0.3);
      text.write(dir_, fmt::format("dataset/{}.safetensors", name));
      latent.add("latent", DType::f32, {48, 1, 2, 2}, 2, 0.3);
      latent.write(dir_, fmt::format("dataset/{}.latent.safetensors", name));
    }
  }
  TinyTraining run_{support::trainable_ti2v()};
};

TEST_F(PastedFlowMatching, Trains) {
  const std::string flags =
      " --dataset_path ./dataset/ --batch_size 1 --num_epochs 1 --learning_rate 1e-4 "
      "--num_workers 4 --checkpoint_dir checkpoints --gradient_checkpointing "
      "--vae_gradient_checkpointing --use_8bit_adam --torch_compile" +
      kMachine;
  expect_plan(paste("plan", "python train_flow_matching.py" + flags), flags);
  expect_plan(paste("plan", "torchrun --nproc_per_node=1 train_flow_matching.py" + flags +
                                " --local_rank -1"),
              flags + " --local_rank -1");
  const Finished f = paste("train", "CUDA_VISIBLE_DEVICES=0 python train_flow_matching.py" + flags);
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out, HasSubstr("finished after 2 steps"));
}

TEST_F(PastedFlowMatching, ItsOtherToolsAnswer) {
  support::write_parts(dir_, run_.config());
  dir_.write("dataset/a.txt", "a clip bcd");
  const std::string before = read_whole(dir_.path("dataset/a.safetensors"));
  const Finished text =
      paste("cache",
            "python precalculate_text_embeds.py --dataset-dir dataset --checkpoint "
            "t5.safetensors --tokenizer-path tokenizer --device cpu --dtype fp16 --batch-size 1 "
            "--overwrite");
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(read_whole(dir_.path("dataset/a.safetensors")), before);
  const Finished sample =
      paste("sample",
            "python test_inference.py --checkpoint none.safetensors --cond c.safetensors "
            "--uncond u.safetensors --output-latent out.safetensors --steps 3 --seed 0");
  EXPECT_EQ(sample.exit_code, 6) << sample.err;
  EXPECT_THAT(sample.err, HasSubstr("none.safetensors"));
}

class PastedDistiller : public Pasted {
 protected:
  PastedDistiller() {
    dir_.write("config/student.json",
               R"({"hidden_size":32,"depth":2,"num_heads":2,"num_channels":4,"image_size":128,)"
               R"("patch_size":16,"text_max_length":77,"text_encoder_output_dim":128})");
    dir_.write("data/prompts.txt", "a red circle falls\n\na blue square grows\n");
  }
  const std::string flags_ =
      " --teacher_path " BALLAST_SOURCE_DIR
      "/examples/demo_model/model --student_config config/student.json --data_path "
      "data/prompts.txt --output_dir ./outputs --batch_size 2 --num_steps 3 --num_epochs 2 --lr "
      "1e-5 --num_workers 0 --gradient_checkpointing --distributed --teacher_on_cpu "
      "--teacher_dtype bfloat16 --mixed_precision" +
      kMachine;
};

TEST_F(PastedDistiller, PlansWithTorchrun) {
  const Finished f =
      paste("distill", "torchrun --nproc_per_node=4 train_distillation.py" + flags_ + " --plan");
  ASSERT_EQ(f.exit_code, 0) << f.err;
  EXPECT_EQ(f.out, paste("distill", flags_ + " --plan").out);
  EXPECT_THAT(f.err, HasSubstr("one GPU is used (--nproc_per_node 4)"));
  EXPECT_FALSE(fs::exists(dir_.path("outputs/config.json")));
  const Finished sample =
      paste("sample",
            "python run_inference.py --model_path ./none --teacher_path ./t --prompt "
            "\"a red circle\" --output_path result.png --num_inference_steps 20");
  EXPECT_THAT(sample.err, HasSubstr("none"));
  EXPECT_NE(sample.exit_code, 0);
}

TEST_F(PastedDistiller, OtherCommandsNameTheRightOne) {
  for (const char* command : {"plan", "train"}) {
    const Finished f = paste(command, "torchrun --nproc_per_node=4 train_distillation.py" + flags_);
    EXPECT_EQ(f.exit_code, 2) << f.err;
    EXPECT_THAT(f.err, AllOf(HasSubstr("WanDistiller's flags"), HasSubstr("1. ballast distill")));
  }
}

class PastedT5 : public Pasted {
 protected:
  PastedT5() {
    support::write_text_model(dir_, "flan-t5-xl");
    std::string lines;
    for (int i = 0; i < 9; ++i) {
      lines +=
          fmt::format("{{\"input\": \"count {}\", \"output\": \"{}\", \"quality_score\": 1}}\n",
                      support::tiny_words()[to_size(i)], support::tiny_words()[to_size(i) + 1]);
    }
    dir_.write("train.jsonl", lines);
  }
  const std::string job_ =
      "python cli/complete_optimized_training.py --model-output models/out --pretrained-model "
      "flan-t5-xl --epochs 3 --batch-size 8 --gradient-accumulation-steps 16 "
      "--enable-mixed-precision --disable-compilation --disable-cudagraphs "
      "--dataloader-num-workers 0 --alert-phone +15550100 --discord-webhook "
      "https://example.com/api/webhooks/1/hunter2";
};

TEST_F(PastedT5, FineTuneJob) {
  const Finished lacking = paste("plan", "WANDB_MODE=offline " + job_);
  EXPECT_EQ(lacking.exit_code, 2);
  EXPECT_THAT(lacking.err, AllOf(HasSubstr("there is no text to train with"),
                                 HasSubstr("1. --train-file PATH")));
  const Finished f = paste("plan", "WANDB_MODE=offline " + job_ + " --train-file train.jsonl");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.out + f.err, AllOf(Not(HasSubstr("hunter2")), Not(HasSubstr("+15550100")),
                                   HasSubstr("ignored: WANDB_MODE")));
}

TEST_F(PastedT5, TransformersScript) {
  const std::string flags =
      " --model_name_or_path flan-t5-xl --do_train --train_file train.jsonl --text_column input "
      "--summary_column output --source_prefix \"summarize: \" --output_dir out "
      "--per_device_train_batch_size=4 --gradient_accumulation_steps 2 --num_train_epochs 1 "
      "--bf16 --optim adamw_bnb_8bit --overwrite_output_dir" +
      kMachine;
  const Finished f = paste(
      "plan",
      "torchrun --nproc_per_node 8 examples/pytorch/summarization/run_summarization.py" + flags);
  expect_plan(f, flags);
  EXPECT_THAT(f.err, HasSubstr("one GPU is used (--nproc_per_node 8)"));
}

TEST_F(Pasted, ToolsThatAreNotReadAreNamed) {
  const Finished synth =
      paste("train",
            "accelerate launch examples/wanvideo/model_training/train.py "
            "--dataset_base_path data --dataset_metadata_path data/metadata.csv "
            "--height 480 --width 832 --learning_rate 1e-4 --lora_base_model dit");
  EXPECT_EQ(synth.exit_code, 2);
  EXPECT_THAT(synth.err, HasSubstr("DiffSynth-Studio's flags"));
  dir_.write("dmd2.yaml", "models:\n  student:\n    trainable: true\n");
  const Finished fast =
      paste("train", "torchrun --nproc_per_node 8 fastvideo/train/train.py --config dmd2.yaml");
  EXPECT_EQ(fast.exit_code, 4);
  EXPECT_THAT(fast.err, HasSubstr("dmd2.yaml: YAML configurations are not read"));
}

TEST_F(Pasted, GenerateTakesALauncherToo) {
  support::write_text_model(dir_, "model");
  const Finished f =
      paste("generate",
            "CUDA_VISIBLE_DEVICES=0 python generate.py --model model --prompt \"count four\" "
            "--max-new-tokens 3 --device cpu");
  EXPECT_EQ(f.exit_code, 0) << f.err;
  EXPECT_THAT(f.err, HasSubstr("ignored: CUDA_VISIBLE_DEVICES"));
}

}  // namespace
}  // namespace ballast::test
