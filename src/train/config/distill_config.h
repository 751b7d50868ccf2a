#pragma once

#include <optional>
#include <string>
#include <vector>

#include "memory/budget.h"
#include "models/student/fit_job.h"
#include "nn/optimizer.h"
#include "train/config/config.h"
#include "train/config/flags.h"

namespace ballast::train {

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
  std::string gpu, ram, disk, device = "auto", verify_weights = "sampled";
  bool ignore_limits = false;  // of the system: what is declared counts
  bool plan_only = false;
  std::vector<std::string> arguments;  // as typed

  std::vector<std::string> notes;  // one line per flag without effect, and why
};

DistillConfig read_distill_config(const std::vector<std::string>& arguments);
std::string distill_flags_help();

}  // namespace ballast::train
