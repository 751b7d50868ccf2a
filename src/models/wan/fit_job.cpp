#include "models/wan/fit_job.h"

#include <algorithm>

#include "core/to_size.h"
#include "models/wan/dit_pass.h"

namespace ballast::wan {
namespace {

bool same_form(const WeightGroup& a, const WeightGroup& b) {
  if (a.keep_precision != b.keep_precision || a.tensors.size() != b.tensors.size()) return false;
  for (std::size_t t = 0; t < a.tensors.size(); ++t) {
    const StoredTensor &x = a.tensors[t], &y = b.tensors[t];
    if (x.data.dtype != y.data.dtype || x.data.shape != y.data.shape) return false;
    if (x.scale.has_value() != y.scale.has_value()) return false;
  }
  return true;
}

std::int64_t tokens_of(const Batch& b) {
  std::int64_t sum = 0;
  for (const LatentSize& z : b.latents) sum += z.tokens();
  return sum;
}

// Everything that may run for a run of the step program.
std::vector<const DitPassIo*> passes_like(const Dit& model, std::size_t run) {
  std::vector<const DitPassIo*> all = {&model.io().runs[run]};
  if (model.job().distil) {
    all.push_back(&model.io().predict_passes[run]);
    all.push_back(&model.io().teacher_passes[run]);
  }
  return all;
}

}  // namespace

std::string step_program(std::size_t run) { return run_program("step", run); }

fit::Recording FitJob::record(const MemoryPolicy& policy, const Backend& backend) const {
  fit::Recording r(policy, backend);
  // Room for most recordings: pages are taken as they are filled.
  constexpr std::int64_t kBuffersOfABlock = 6144;
  r.set.buffers.reserve(to_size(dit.config.layers * kBuffersOfABlock));
  DitJob job = dit;
  job.policy = policy;
  const Dit model(r.set, std::move(job), experts);
  if (teacher) Dit(r.set, dit_job(*teacher, model), teacher->experts);
  if (!auxiliary_model.variants.empty()) auxiliary_model.variants[auxiliary_model.chosen()](r.set);
  for (std::size_t b = 0; b < dit.batches.size(); ++b) {
    r.steps.push_back(step_of(r, model, b));
  }
  return r;
}

std::vector<fit::StepProgram> FitJob::step_of(const fit::Recording& recorded, const Dit& model,
                                              std::size_t batch) const {
  std::vector<fit::StepProgram> step;
  const std::int64_t samples = std::ssize(dit.batches[batch].latents);
  const int rank = dit.parallel.busiest(samples);  // others wait for it
  const std::vector<StepPass> passes = model.passes(batch, rank);
  const auto add = [&](const std::string& name, double runs, bool computes) {
    recorded.add(step, name, runs, computes);
  };
  const auto add_columns = [&](int set, double runs) {
    const ColumnSums* sums = model.column_sums();
    if (!sums) return;
    for (const std::string& end : sums->column_ends(rank, samples, set)) add(end, runs, false);
    for (const std::string& end : sums->all_column_ends(set)) add(end, 0, false);
    add(sums->exchange(samples, set), runs, false);
  };
  add("zero_gradients", static_cast<double>(dit.parallel.columns_of(rank, samples).size()), false);
  if (dit.parallel.ranks > 1) {  // others may have more columns, and of other sizes
    add("zero_gradients", 0, false);
    for (int r = 0; r < dit.parallel.ranks; ++r) {
      for (const StepPass& pass : model.passes(batch, r)) {
        for (const DitPassIo* io : passes_like(model, pass.run)) {
          for (const std::string& program : io->programs) add(program, 0, false);
        }
        add(kTeacherPrefix + step_program(pass.run), 0, false);
        add(kTeacherPrefix + expert_program(step_program(pass.run), 1), 0, false);
      }
    }
    add(ColumnSums::kAgree, 1, false);
  }
  if (dit.distil) {
    const double students = dit.distil->student_share, rollouts = 1 + students;
    for (const StepPass& part : passes) {
      const auto of = [&](const char* name) { return run_program(name, part.run); };
      add(of("predict"), rollouts * dit.distil->rollout_answers, true);
      add(of("step") + ".critic", 1, true);
      add(of("predict") + ".critic", students, true);
      add(of("teacher"), students, true);
      add(of("step"), students, true);
    }
    add_columns(0, students);
    add_columns(1, 1);
    add("grad_norm", students, false);
    add("update", students, false);
    add("grad_norm.critic", 1, false);
    add("update.critic", 1, false);
    return step;
  }
  const std::string beside = kTeacherPrefix;
  // A step is that of one expert, whose programs take as long as the other's. What stays must be
  // read anew when the other one has its turn.
  const auto of_either = [&](const std::string& name, bool computes) {
    add(name, 1, computes);
    add(expert_program(name, 1), 0, computes);
  };
  for (const std::string& prefix : {std::string(), beside}) {
    add(prefix + expert_program("load", 1), expert_changes, false);
    if (expert_changes > 0) add(prefix + "load", 0, false);
  }
  for (const StepPass& part : passes) {
    of_either(beside + step_program(part.run), true);
    of_either(step_program(part.run), true);
  }
  add_columns(0, 1);
  if (experts.size() > 1) add_columns(1, 0);
  of_either("grad_norm", false);
  of_either("update", false);
  return step;
}

fit::Trained FitJob::trained() const {
  return dit.mode == Mode::full   ? fit::Trained::weights
         : dit.mode == Mode::lora ? fit::Trained::adapters
                                  : fit::Trained::nothing;
}

// An adapter's state is small.
bool FitJob::may_keep_state_on_disk() const { return dit.mode == Mode::full && dit.record_update; }

std::int64_t FitJob::depth() const {
  if (!dit.lora.excluded.empty()) return 0;
  for (const auto& groups : experts) {
    for (std::int64_t b = 1; b < dit.config.layers; ++b) {
      if (!same_form(groups[to_size(block_group(0))], groups[to_size(block_group(b))])) {
        return 0;
      }
    }
  }
  return dit.config.layers;
}

std::unique_ptr<fit::Job> FitJob::with_depth(std::int64_t layers) const {
  auto job = std::make_unique<FitJob>(*this);
  job->dit.config.layers = layers;
  for (auto& groups : job->experts) {
    groups.erase(groups.begin() + block_group(layers), groups.end() - 1);
  }
  return job;
}

std::unique_ptr<fit::Job> FitJob::heaviest() const {
  auto job = std::make_unique<FitJob>(*this);
  for (std::vector<Batch>* batches : {&job->dit.batches, &job->dit.eval_batches}) {
    if (batches->empty()) continue;
    std::swap(batches->front(), *std::ranges::max_element(*batches, {}, tokens_of));
    batches->resize(1);
  }
  return job;
}

bool FitJob::may_keep_blocks(const MemoryPolicy& p, const fit::Switches&) const {
  return !p.streams() && p.activations == Activations::attention_kept && !p.offload;
}

// A policy that is asked for by name has the smallest chunks of any job, cut here at this job's.
MemoryPolicy FitJob::adapted(MemoryPolicy policy) const {
  const std::int64_t unit = row_unit(dit);
  policy.chunk_tokens = (policy.chunk_tokens + unit - 1) / unit * unit;
  return policy;
}

// Each block its input and, unless it is computed again, attention's output.
Bytes FitJob::min_kept_bytes(const MemoryPolicy& policy) const {
  if (dit.mode == Mode::infer || !dit.lora.excluded.empty()) return {};
  std::int64_t tokens = 0;  // of a run
  for (const Batch& b : dit.batches) {
    std::int64_t longest = 0;
    for (const LatentSize& z : b.latents) longest = std::max(longest, z.tokens());
    tokens = std::max(tokens, policy.samples_per_pass == 0 ? tokens_of(b) : longest);
  }
  std::size_t element = size_of(dit.precision.residual);
  if (policy.activations != Activations::recomputed) element += size_of(dit.precision.activation);
  const std::int64_t elements = dit.config.layers * tokens * dit.config.dim;
  return {static_cast<std::uint64_t>(elements) * element};
}

// One expert's: all where they do not come from disk.
Bytes FitJob::held_by_others() const {
  if (!teacher) return {};
  const MemoryPolicy p = teacher->policy.value_or(teacher_policies().back());
  if (p.streams() && p.streaming->stream_from == StreamSource::disk) return {};
  return min_bytes(teacher->experts.front(), teacher->format);
}

bool FitJob::others_are_resident() const {
  return teacher && teacher->policy && !teacher->policy->streams();
}

std::vector<std::unique_ptr<fit::Job>> FitJob::variants() const {
  std::vector<std::unique_ptr<fit::Job>> all;
  if (!auxiliary_model.variants.empty() && !auxiliary_model.variant) {
    for (std::size_t variant = 0; variant < auxiliary_model.variants.size(); ++variant) {
      auto job = std::make_unique<FitJob>(*this);
      job->auxiliary_model.variant = variant;
      all.push_back(std::move(job));
    }
    return all;
  }
  if (!teacher || teacher->policy) return all;
  for (const MemoryPolicy& placement : teacher_policies()) {
    auto job = std::make_unique<FitJob>(*this);
    job->teacher->policy = placement;
    job->teacher_has_placement_ = placement.streams();
    all.push_back(std::move(job));
  }
  return all;
}

std::unique_ptr<fit::Job> FitJob::without_variants() const {
  if (auxiliary_model.variants.empty() || auxiliary_model.variant) return nullptr;
  auto job = std::make_unique<FitJob>(*this);
  job->auxiliary_model = {};
  return job;
}

int FitJob::second_groups() const {
  return teacher_has_placement_ ? wan::group_count(teacher->config) : 0;
}

void FitJob::keep_second_groups(int groups) { teacher->policy->keep_groups(groups); }

}  // namespace ballast::wan
