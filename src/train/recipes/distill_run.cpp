#include "train/recipes/distill_run.h"

#include <algorithm>

#include "core/error.h"
#include "core/random.h"
#include "infer/student_sampler.h"
#include "io/hub_cache.h"
#include "models/wan/recognise.h"
#include "models/wan/weights.h"
#include "train/recipes/distill_batches.h"
#include "train/recipes/distill_samples.h"
#include "train/run/published_model.h"
#include "train/run/run_files.h"

namespace ballast::train {
namespace {

PassTimes passes_of(const DistillRun& run, const fit::PlannedRun& planned) {
  PassTimes passes = {.count = run.config.gradient_accumulation};
  for (const char* program :
       {student::Pair::kBoth, student::Pair::kTeacher, student::Student::kStep}) {
    passes.longest += planned.seconds_of(program);
  }
  passes.shortest = passes.longest;
  return passes;
}

PlanFiles planned_files(const DistillRun& run) {
  TrainConfig saves;
  saves.output_dir = run.config.output_dir;
  saves.resume = run.config.resume;
  saves.optimizer = run.config.optimizer;
  saves.keep_checkpoints = run.config.keep_checkpoints;
  if (run.config.checkpoint_steps > 0) saves.checkpoint.steps = run.config.checkpoint_steps;
  return files_of({.config = saves,
                   .total_steps = run.total_steps,
                   .steps_per_epoch = run.steps_per_epoch,
                   .parameters = parameter_count(run.student)},
                  run.request.profile.name == kThisMachine);
}

std::string hash_of_pair(const student::Config& student, const WeightFiles& teacher) {
  std::uint64_t h = hash_of(config_text(student));
  for (const WeightTensor& t : teacher.tensors()) {
    h = hash_of(fmt::format("{}{}{}{}", h, t.entry->name, t.entry->shape, t.entry->dtype));
  }
  return fmt::format("{:016x}", h);
}

}  // namespace

DistillRun prepare_distill(DistillConfig config, const RunTarget& target) {
  DistillRun run;
  run.config = std::move(config);
  const DistillConfig& c = run.config;
  run.notes = c.notes;
  run.student = student::read_config(c.student_config);
  run.prompts = std::make_unique<PromptFile>(c.data_path);
  ModelConfig named;
  named.checkpoint = infer::model_path(c.teacher_path);
  const std::optional<wan::Published> absent = absent_model(named);
  if (absent && !c.plan_only) fail_not_downloaded(c.teacher_path, absent->id);
  if (!absent) run.files = infer::find_model_files(named.checkpoint);
  const auto put = [](const std::string& given, std::string& to) {
    if (!given.empty()) to = infer::model_path(given);
  };
  put(c.text_encoder, run.files.text_encoder);
  if (!c.tokenizer.empty()) {
    run.files.tokenizer = resolve_model_path(c.tokenizer, HubUse::tokenizer).path;
  }
  if (run.files.tokenizer.empty()) {
    run.files.tokenizer = infer::stored_tokenizer(run.files.text_encoder);
  }
  put(c.vae, run.files.vae);
  fit::Request& r = run.request;
  student::FitJob& j = student::job_of(r);
  if (absent) {
    j.pair.teacher = absent->config;
    j.teacher = planned_groups(absent->config, absent->stored);
    run.notes.push_back(
        fmt::format("{} is not on this machine: planned from its published sizes, weights in {}",
                    c.teacher_path, name_of(absent->stored)));
  } else {
    run.teacher = std::make_unique<WeightFiles>(WeightFiles::open(run.files.transformer));
    run.names = std::make_unique<wan::TensorMap>(*run.teacher);
    j.pair.teacher = recognised_config(*run.teacher, *run.names, run.files.transformer);
    j.teacher = weight_groups(j.pair.teacher, *run.teacher, *run.names);
  }
  run.student.teacher_channels = j.pair.teacher.out_dim;
  r.profile = j.profile = target.profile;
  r.backend = target.backend;
  j.gpu = r.backend.device == Device::cuda;
  j.host_threads = target.host_threads;
  r.budget = resolve_budget(target, c.machine);
  j.placement = c.place;
  j.recompute = c.gradient_checkpointing;
  j.pair.teacher_precision = precision_on(r.backend.device);
  if (c.teacher_dtype && !c.literal) j.pair.teacher_format = *c.teacher_dtype;
  student::Job& s = j.pair.student;
  s.config = run.student;
  s.batch = c.batch_size;
  s.runs_per_step = c.gradient_accumulation;
  s.precision = precision_on(r.backend.device);
  if (c.student_dtype) s.precision = {*c.student_dtype, *c.student_dtype};
  s.optimizer = c.optimizer;
  s.max_grad_norm = c.max_grad_norm;
  r.other_lines = {distill_batches_line(run, j.pair)};
  if (c.save_samples) infer::student_steps(c.sample_steps);  // so many can be taken
  if (decodes_samples(run)) r.other_lines.push_back(decoder_line(run));

  const std::int64_t prompts = run.prompts->count(), per_step = run.samples_per_step();
  run.steps_per_epoch = (prompts + per_step - 1) / per_step;
  run.total_steps = std::min(c.num_steps, (c.num_epochs * prompts + per_step - 1) / per_step);
  run.schedule = c.schedule;
  run.schedule.total_steps = run.total_steps;
  run.schedule.steps_per_epoch = run.steps_per_epoch;
  if (run.teacher) run.model_hash = hash_of_pair(run.student, *run.teacher);

  if (run.student.projects()) {
    run.notes.push_back(fmt::format(
        "the student has {} channels, the teacher {}: {}, and the student's answer goes through a "
        "trained projection",
        run.student.num_channels, run.student.teacher_channels,
        c.literal ? "the teacher sees zeros (--literal)"
                  : "the teacher's channel k is the student's channel k mod " +
                        std::to_string(run.student.num_channels)));
  }
  if (c.literal && c.teacher_dtype) {
    run.notes.push_back("--teacher_dtype: converts nothing with --literal");
  }
  if (!run.files.high_noise.empty()) {
    run.notes.push_back("the low-noise expert teaches at all times; the other is not read");
  }
  return run;
}

ProcessLine distill_batches_line(const DistillRun& run, const student::PairJob& job) {
  return {.name = "distillation batches",
          .bytes = DistillBatches::bytes(job) + run.prompts->bytes(),
          .reason = "latents that the student is about to see, where prompts are"};
}

PlanTitle title_of(const DistillRun& run) {
  const fit::Request& r = run.request;
  return {
      .model = run.pair().teacher.name,
      .mode = "distill",
      .shape = fmt::format("student of {} parameters, batch {} x {}", parameter_count(run.student),
                           run.config.batch_size, run.config.gradient_accumulation),
      .weights = std::string(name_of(run.pair().teacher_format)),
      .machine = machine_text(r.profile),
      .budget = r.budget,
      .shared_ram = r.profile.device == Device::cpu,
      .sizes = {.parameters = parameter_count(run.student),
                .batch = run.config.batch_size * run.config.gradient_accumulation,
                .min_batch = run.config.batch_size * run.config.gradient_accumulation},
      .ram_of_this_machine = borrows_ram(r.profile, run.config.machine.ram.has_value())};
}

PlanView view_of(const DistillRun& run, const fit::PlannedRun& planned) {
  const student::PairJob pair = planned.job.as<student::FitJob>().under(planned.policy);
  return {.plan = planned.plan,
          .times = planned.times,
          .lines = planned.lines,
          .policy = planned.policy.name,
          .policy_text = text_of(pair),
          .streamed_blocks = fit::streamed_blocks(*planned.job, pair.teacher_policy),
          .step_seconds = {planned.seconds_per_step()},
          .passes = {passes_of(run, planned)},
          .steps_of_kind = {run.steps_per_epoch},
          .total_steps = run.total_steps,
          .notes = run.notes,
          .files = planned_files(run)};
}

}  // namespace ballast::train
