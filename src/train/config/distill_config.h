#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "models/student/fit_job.h"
#include "nn/machine_options.h"
#include "nn/optimizer.h"
#include "train/config/config.h"
#include "train/config/flags.h"

namespace ballast::train {

inline constexpr std::array<EnumName<student::TeacherPlacement>, 6> kPlacementNames = {
    {{"auto", student::TeacherPlacement::automatic},
     {"balanced", student::TeacherPlacement::automatic},
     {"gpu0", student::TeacherPlacement::device},
     {"cpu", student::TeacherPlacement::host},
     {"disk", student::TeacherPlacement::disk},
     {"cpu_compute", student::TeacherPlacement::processors}}};
inline constexpr std::array<EnumName<WeightFormat>, 6> kTeacherTypes = {
    {{"float32", WeightFormat::f32},
     {"float16", WeightFormat::f16},
     {"bfloat16", WeightFormat::bf16},
     {"fp8", WeightFormat::f8_e4m3_rows},
     {"float8", WeightFormat::f8_e4m3_rows},
     {"stored", WeightFormat::stored}}};
inline constexpr std::array<EnumName<DType>, 2> kStudentTypes = {
    {{"float32", DType::f32}, {"bfloat16", DType::bf16}}};

// A distillation as it is asked for: WanDistiller's flags and ours (docs/distillation.md).
struct DistillConfig {
  std::string teacher_path, student_config, data_path, output_dir = "./outputs";
  std::int64_t batch_size = 2, num_steps = 500, num_epochs = 10;
  double lr = 1e-5;
  bool gradient_checkpointing = false;
  student::TeacherPlacement place = student::TeacherPlacement::automatic;
  std::optional<WeightFormat> teacher_dtype;  // nullopt: as its file has it
  std::optional<DType> student_dtype;         // f32 or bf16; nullopt: bf16 on a GPU

  bool save_samples = false;
  std::string sample_dir;                   // "": output_dir/samples
  std::vector<std::string> sample_prompts;  // empty: the first two
  std::int64_t sample_interval = 1;         // epochs
  std::int64_t sample_steps = 10;

  bool literal = false;  // what the reference does where that is not what it says
  std::string text_encoder, tokenizer, vae, text_states;  // "": in the teacher's folder; output_dir
  std::uint64_t seed = 42;
  std::int64_t gradient_accumulation = 1;
  double max_grad_norm = 0;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  std::int64_t checkpoint_steps = 0;  // 0: at the end alone
  int keep_checkpoints = 3;
  std::int64_t logging_steps = 50, memory_line_steps = 200;
  std::optional<std::string> resume;  // "": the newest run
  MachineOptions machine;
  bool plan_only = false;
  std::vector<std::string> arguments;  // as typed

  std::vector<std::string> notes;  // one line per flag without effect, and why

  // What has a flag of its own, besides the machine's options.
  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("teacher_path", c.teacher_path,
          "folder of Wan2.2-T2V-A14B (published or diffusers), or a transformer's file");
    visit("student_config", c.student_config, "JSON with the student's sizes");
    visit("data_path", c.data_path, "text file, one prompt per line");
    visit("output_dir", c.output_dir, "where the student and the runs go");
    visit("batch_size", c.batch_size, "samples that share a visit of the teacher", 1);
    visit("num_steps", c.num_steps, "optimizer steps at most", 1);
    visit("num_epochs", c.num_epochs, "times through the prompts at most", 1);
    visit("lr", c.lr, "learning rate of AdamW");
    visit("gradient_checkpointing", c.gradient_checkpointing,
          "blocks of the student keep their input alone (chosen anyway where it must be)");
    visit("teacher_device_strategy", c.place,
          "where the teacher is: gpu0 (stays on the GPU), cpu (RAM, streamed), disk (its file, "
          "streamed), cpu_compute (RAM, and the processors compute), auto or balanced "
          "(the fastest that fits)",
          kPlacementNames);
    visit("teacher_dtype", c.teacher_dtype,
          "float32, float16, bfloat16 or fp8: matrices are converted while they are read "
          "(default: as the file has them)",
          kTeacherTypes);
    visit("student_dtype", c.student_dtype,
          "float32 or bfloat16: what the student computes in; its weights are f32 (default: "
          "bfloat16 on a GPU)",
          kStudentTypes);
    visit("save_samples", c.save_samples, "draw samples of the student");
    visit("sample_dir", c.sample_dir, "where they go (default: OUTPUT_DIR/samples)");
    visit("sample_prompts", c.sample_prompts, "their prompts (default: the first two)");
    visit("sample_interval", c.sample_interval, "epochs between samples", 1);
    visit("sample_steps", c.sample_steps, "steps of a sample", 1);
    visit("literal", c.literal,
          "as the reference does it: the teacher sees zeros where channels differ, all of in_proj "
          "comes from the teacher's q, --teacher_dtype converts nothing");
    visit("text_encoder", c.text_encoder, "where the teacher's folder has none");
    visit("tokenizer", c.tokenizer, "the same for tokenizer.json or spiece.model");
    visit("vae", c.vae, "the same for the VAE, which samples are decoded with");
    visit("text_states", c.text_states,
          "folder of encoded prompts (default: OUTPUT_DIR/text_states)");
    visit("seed", c.seed, "of weights, noise, times and order", INT64_MIN);
    visit("gradient_accumulation_steps", c.gradient_accumulation, "batches of an optimizer step",
          1);
    visit("max_grad_norm", c.max_grad_norm, "gradients longer than this are shortened (0: never)");
    visit("weight_decay", c.optimizer.weight_decay, "of AdamW");
    visit("lr_warmup_steps", c.schedule.warmup_steps, "steps in which the rate grows");
    visit("checkpoint_steps", c.checkpoint_steps, "steps between checkpoints (0: one at the end)");
    visit("keep_checkpoints", c.keep_checkpoints, "that are kept", 1, 1000);
    visit("logging_steps", c.logging_steps, "steps between lines", 1);
    visit("resume", c.resume, "continue the newest run of OUTPUT_DIR, or the one named");
    visit("plan", c.plan_only, "print the plan and end");
  }
};

DistillConfig read_distill_config(const std::vector<std::string>& arguments);
std::string distill_flags_help();

}  // namespace ballast::train
