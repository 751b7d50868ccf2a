#include "train/run/distilled_model.h"

#include <filesystem>
#include <utility>

#include "core/error.h"
#include "models/wan/recognise.h"
#include "models/wan/smaller_model.h"
#include "models/wan/weights.h"
#include "train/run/run_summary.h"

namespace ballast::train {
namespace {

// The first weights of a student, written once: every run with this teacher and these sizes begins
// with that file.
std::string initial_student(const PreparedRun& run, const wan::Config& student) {
  const TrainConfig& c = run.config;
  return fmt::format("{}/initial-student-{}-{}-{}-{}-{}.safetensors", c.output_dir, student.layers,
                     student.dim, student.ffn_dim, name_of(c.model.dtype),
                     model_hash(std::span(run.teacher).first(1)));
}

}  // namespace

void check_distillable(const PreparedRun& run, bool cache_known) {
  const TrainConfig& c = run.config;
  if (c.dmd2 && wan::job_of(run.request).experts.size() > 1) {
    fail(ErrorCode::input,
         "[distill]: two experts share the steps of a clip, and a student takes all of its steps",
         {{"[model] transformer_path = 'FOLDER'", "distils one transformer"}});
  }
  if (!c.eval_datasets.empty()) {
    fail(ErrorCode::input, "eval_datasets: a distillation has no loss that a dataset could show",
         {{"remove the line", "docs/distillation.md says how samples are compared instead"}});
  }
  const double guidance = c.dmd2 ? c.dmd2->guidance : c.student->guidance;
  if (guidance != 1 && cache_known && !run.dataset->has_empty_caption()) {
    fail(ErrorCode::input,
         fmt::format("[distill] guidance = {} needs the empty caption, and the cache of {} has no "
                     "embedding of it",
                     guidance, c.dataset.config),
         {{"ballast cache CONFIG", "encodes it"},
          {"[distill] guidance = 1", "the teacher answers for the captions alone"}});
  }
}

void take_student(PreparedRun& run, Purpose purpose) {
  const TrainConfig& c = run.config;
  if (!c.model.base_loras.empty()) {
    fail(ErrorCode::input, "base_loras: merge them into the teacher's file first",
         {{"ballast convert", "merges LoRAs into a model"}});
  }
  fit::Request& r = run.request;
  const wan::Config model = wan::job_of(r).dit.config;
  wan::job_of(r).teacher = wan::TeacherJob{.config = model,
                                           .precision = precision_on(r.backend.device),
                                           .format = {},
                                           .policy = {},
                                           .guided = c.student->guidance != 1,
                                           .experts = std::exchange(wan::job_of(r).experts, {})};
  run.teacher = std::exchange(run.checkpoints, {});
  std::string path = c.student->file;
  if (path.empty()) {
    const wan::Config student = smaller_config(
        model, {.layers = c.student->layers, .dim = c.student->dim, .ffn_dim = c.student->ffn_dim});
    const bool planned = run.teacher.empty();  // with the published sizes of the teacher
    if (!planned) path = initial_student(run, student);
    std::error_code error;
    if (planned || !std::filesystem::exists(path, error)) {
      if (purpose == Purpose::plan) {
        wan::job_of(r).dit.config = student;
        wan::job_of(r).experts = {planned_groups(student, c.model.dtype)};
        return;
      }
      std::filesystem::create_directories(c.output_dir, error);
      const WeightFiles& from = run.teacher[0];
      write_smaller_model(path, student, model, from, wan::TensorMap(from), c.model.dtype);
    }
  }
  const WeightFiles& file = run.checkpoints.emplace_back(WeightFiles::open(path));
  const wan::TensorMap names(file);
  wan::Config& student = wan::job_of(r).dit.config;
  student = recognised_config(file, names, path);
  if (student.in_dim != model.in_dim || student.out_dim != model.out_dim ||
      student.text_dim != model.text_dim) {
    fail(ErrorCode::input, "{} reads {} channels and texts of {} numbers, its teacher {} and {}",
         path, student.in_dim, student.text_dim, model.in_dim, model.text_dim);
  }
  student.text_len = model.text_len;
  student.name = fmt::format("{} of {} blocks, width {}", model.name, student.layers, student.dim);
  wan::job_of(r).experts = {weight_groups(student, file, names)};
}

}  // namespace ballast::train
