#include "train/run/run_plan.h"

#include <algorithm>

#include "models/wan/dit_pass.h"
#include "train/run/run_files.h"

namespace ballast::train {
namespace {

std::string weights_text(const wan::FitJob& job, const MemoryPolicy& p) {
  if (!p.streams()) return "weights resident";
  const std::int64_t streamed = fit::streamed_blocks(job, p),
                     from_host = fit::blocks_from_host(job, p);
  const bool host =
      p.streaming->stream_from == StreamSource::host || (from_host > 0 && from_host == streamed);
  const std::string from =
      host             ? "RAM"
      : from_host == 0 ? "disk"
                       : fmt::format("disk ({}) and RAM ({})", streamed - from_host, from_host);
  return fmt::format("weights of {} of {} blocks streamed from {} ", streamed, job.blocks(), from);
}

std::string_view activations_text(Activations a) {
  constexpr std::string_view kTexts[] = {"keeps all activations",
                                         "keeps attention outputs, recomputes the rest",
                                         "keeps block inputs, recomputes the rest"};
  return kTexts[to_size(a)];
}

std::string describe(const wan::FitJob& job, const MemoryPolicy& p) {
  const wan::Config& config = job.dit.config;
  std::string text = weights_text(job, p);
  if (const Streaming s = p.stream(); s.matrices_ahead > 0) {
    text += fmt::format("matrix by matrix, {} ahead", s.matrices_ahead);
  } else if (p.streams()) {
    text += fmt::format("through {} slot{}", s.slots, s.slots == 1 ? "" : "s");
  }
  if (job.dit.mode != wan::Mode::infer)
    text += fmt::format("; {}", activations_text(p.activations));
  if (p.kept_blocks > 0)
    text += fmt::format("; keeps all activations of {} of {} blocks", p.kept_blocks, config.layers);
  if (p.offload) text += "; activations offloaded to RAM";
  if (p.disk_state_groups > 0) {
    const int groups = group_count(config), on_disk = std::min(groups, p.disk_state_groups);
    text += on_disk == groups
                ? "; optimizer state on disk"
                : fmt::format("; optimizer state of {} of {} groups on disk", on_disk, groups);
  }
  if (p.split_backward) text += "; recomputes half a block at a time";
  if (p.chunk_tokens > 0) text += fmt::format("; chunks of {} tokens", p.chunk_tokens);
  if (p.heads_per_group > 0)
    text += fmt::format("; attention backward {} head{} at a time", p.heads_per_group,
                        p.heads_per_group == 1 ? "" : "s");
  return text;
}

// Of a distilled step with a critic a pass is many programs: nothing is said of them.
std::vector<PassTimes> passes_of(const fit::PlannedRun& planned) {
  std::vector<PassTimes> all;
  if (planned.job.as<wan::FitJob>().dit.distil) return all;
  const auto add = [&](const std::string& program, PredictedTime& sum) {
    for (std::size_t p = 0; p < planned.set.programs.size(); ++p) {
      if (planned.set.programs[p].name != program) continue;
      sum.seconds += planned.times[p].seconds;
      sum.exposed_stall += planned.times[p].exposed_stall;
    }
  };
  for (const auto& step : planned.steps) {
    PassTimes kind;
    for (const fit::StepProgram& program : step) {
      if (!program.computes || program.name.starts_with(wan::kTeacherPrefix)) continue;
      PredictedTime pass;
      add(program.name, pass);
      add(wan::kTeacherPrefix + program.name, pass);
      kind.shortest = kind.count == 0 ? pass.seconds : std::min(kind.shortest, pass.seconds);
      kind.longest = std::max(kind.longest, pass.seconds);
      kind.waiting += pass.exposed_stall;
      ++kind.count;
    }
    all.push_back(kind);
  }
  return all;
}

std::int64_t adapter_parameters(const wan::DitJob& job) {
  std::int64_t count = 0;
  for (std::int64_t block = 0; block < job.config.layers; ++block) {
    for (const wan::AdapterTarget& t : wan::adapter_targets(job.config)) {
      const std::string module = fmt::format("blocks.{}.{}", block, t.name);
      const bool excluded = std::ranges::find(job.lora.excluded, module) != job.lora.excluded.end();
      if (!excluded) count += job.lora.rank * (t.weight[0] + t.weight[1]);
    }
  }
  return count;
}

// Pixels of all frames of the longest preview.
std::int64_t preview_pixels(const PreparedRun& run) {
  const wan::Config& model = run.model();
  wan::LatentSize largest;  // as the largest clips trained on
  for (const wan::Batch& b : wan::job_of(run.request).dit.batches) {
    for (const wan::LatentSize& z : b.latents) {
      if (z.tokens() > largest.tokens()) largest = z;
    }
  }
  std::int64_t most = 0;
  for (const PreviewClip& c : run.config.preview.clips) {
    const std::int64_t frames = c.frames.value_or(4 * (largest.frames - 1) + 1);
    most = std::max(most, frames * c.height.value_or(largest.height * model.spatial_stride) *
                              c.width.value_or(largest.width * model.spatial_stride));
  }
  return most;
}

PlanFiles planned_files(const PreparedRun& run) {
  const TrainConfig& c = run.config;
  const bool lora = c.method == Method::lora;
  return files_of({.config = c,
                   .total_steps = run.total_steps,
                   .steps_per_epoch = run.steps_per_epoch,
                   .parameters = training_sizes(run.request).parameters,
                   .trained = lora ? c.adapter.dtype : c.model.dtype,
                   .saved = c.save_dtype,
                   .trained_sets = c.dmd2 ? 2 : 1,
                   .preview_pixels = preview_pixels(run)},
                  run.request.profile.name == kThisMachine);
}

// How the run's own dialect says a key of [memory].
std::string memory_key(const TrainConfig& c, std::string_view key, std::string_view value) {
  if (c.dialect != Dialect::diffusion_pipe) return fmt::format("--{} {}", key, value);
  const bool number = value.find_first_not_of("0123456789") == value.npos;
  return number ? fmt::format("[memory] {} = {}", key, value)
                : fmt::format("[memory] {} = '{}'", key, value);
}

// The named policy that does what a hint asks for, with weights where this plan has them.
std::string_view policy_like(bool streamed, bool offload) {
  for (const MemoryPolicy& p : named_policies()) {
    if (p.activations == Activations::kept || p.chunk_tokens > 0 || p.heads_per_group > 0) continue;
    if (p.streams() != streamed || p.offload != offload) continue;
    if (offload || p.activations == Activations::recomputed) return p.name;
  }
  return "";
}

// A plan that fits and is faster may do less of what a configuration asks for to save memory. Then
// the user is told so, and how to have it all the same.
void add_hint_notes(const TrainConfig& c, const fit::PlannedRun& planned,
                    std::vector<std::string>& notes) {
  const auto& job = planned.job.as<wan::FitJob>();
  const wan::Config& model = job.dit.config;
  const MemoryPolicy& p = planned.policy;
  const MemoryConfig& m = c.memory;
  const bool toml = c.dialect == Dialect::diffusion_pipe;
  const std::int64_t streamed = fit::streamed_blocks(job, p);
  if (m.blocks_to_swap && !m.stream_blocks) {
    const std::int64_t asked = std::min(*m.blocks_to_swap, model.layers);
    std::string note = fmt::format("blocks_to_swap = {} is a hint: {} of {} blocks stay resident",
                                   *m.blocks_to_swap, model.layers - streamed, model.layers);
    if (streamed > asked) note += ", there is no room for more";
    if (streamed < asked) {
      note += fmt::format(", which is faster; {} streams {} of them",
                          memory_key(c, "stream_blocks", std::to_string(asked)), asked);
    }
    notes.push_back(std::move(note));
  }
  if (m.policy != "auto") return;
  const bool offload = m.checkpointing == Checkpointing::recompute_offloaded;
  if (m.checkpointing != Checkpointing::recompute && !offload) return;
  const bool all_kept = p.activations == Activations::kept;
  const bool kept = all_kept || p.kept_blocks > 0;
  if (!kept && (!offload || p.offload)) return;
  const std::string asked =
      toml ? (offload ? "activation_checkpointing = 'unsloth'" : "activation_checkpointing = true")
           : (offload ? "--gradient_checkpointing_cpu_offload" : "--gradient_checkpointing");
  const std::string what = !kept ? std::string("block inputs fit and are not offloaded")
                           : all_kept
                               ? std::string("activations fit and are kept")
                               : fmt::format("activations of {} of {} blocks fit and are kept",
                                             p.kept_blocks, model.layers);
  notes.push_back(fmt::format("{} is a hint: {}, which is faster; {} forces it", asked, what,
                              memory_key(c, "policy", policy_like(p.streams(), offload))));
}

}  // namespace

TrainingSizes training_sizes(const fit::Request& request) {
  const wan::DitJob& job = wan::job_of(request).dit;
  TrainingSizes sizes;
  if (job.mode == wan::Mode::infer || job.batches.empty()) return sizes;
  for (const std::vector<WeightGroup>& expert : wan::job_of(request).experts) {
    sizes.parameters +=
        job.mode == wan::Mode::lora ? adapter_parameters(job) : parameter_count(expert);
  }
  const auto samples = [](const wan::Batch& b) { return std::ssize(b.latents); };
  const auto [least, most] = std::ranges::minmax(job.batches, {}, samples);
  sizes.min_batch = samples(least);
  sizes.batch = samples(most);
  return sizes;
}

PlanTitle title_of(const PreparedRun& run) {
  const fit::Request& r = run.request;
  const wan::FitJob& job = wan::job_of(r);
  std::string shape = run.shapes;
  if (job.dit.mode == wan::Mode::lora) shape = fmt::format("rank {}, {}", job.dit.lora.rank, shape);
  if (job.experts.size() > 1) shape = "both experts, " + shape;
  return {.model = job.dit.config.name,
          .mode = std::string(name_of(job.dit.mode)),
          .shape = shape,
          .weights = weights_text(job.dit),
          .machine = machine_text(r.profile),
          .budget = r.budget,
          .shared_ram = r.profile.device == Device::cpu,
          .sizes = training_sizes(r),
          .ram_of_this_machine = borrows_ram(r.profile, run.config.memory.ram.has_value())};
}

PlanView view_of(const fit::Request& request, const fit::PlannedRun& planned,
                 const PreparedRun* whole) {
  const wan::FitJob& job = wan::job_of(request);
  PlanView view = {.plan = planned.plan,
                   .times = planned.times,
                   .lines = planned.lines,
                   .policy = planned.policy.name,
                   .policy_text = describe(job, planned.policy),
                   .streamed_blocks = fit::streamed_blocks(job, planned.policy)};
  for (std::size_t k = 0; k < planned.steps.size(); ++k) {
    view.step_seconds.push_back(planned.seconds_of_step(k));
  }
  view.passes = passes_of(planned);
  if (job.dit.mode == wan::Mode::infer) view.step_label = "evaluation";
  if (!whole) return view;
  view.steps_of_kind = whole->kind_steps;
  view.total_steps = whole->steps_per_epoch > 0 ? whole->total_steps : 0;
  view.files = planned_files(*whole);
  view.notes = whole->notes;
  if (whole->previews) {
    for (std::string& n : whole->previews->notes(planned)) view.notes.push_back(std::move(n));
  }
  add_hint_notes(whole->config, planned, view.notes);
  return view;
}

}  // namespace ballast::train
