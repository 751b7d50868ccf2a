// How a fine-tune is planned, and how its plan or refusal is said.

#include <algorithm>

#include "plan/budget_flag.h"
#include "train/config/enum_names.h"
#include "train/recipes/seq2seq_run.h"
#include "train/run/run_files.h"

namespace ballast::train {

namespace {

// Of one run of a step's program.
double pass_seconds(const Seq2SeqRun& run, const fit::PlannedRun& planned, std::size_t kind) {
  return (planned.seconds_of_step(kind) - planned.seconds_of_update()) /
         static_cast<double>(run.runs_per_step());
}

}  // namespace

double seconds_per_step(const Seq2SeqRun& run, const fit::PlannedRun& planned) {
  double sum = 0, runs = 0;
  for (std::size_t k = 0; k < run.train->shapes.size(); ++k) {
    // Of too many texts nobody knows which shapes occur how often: all alike.
    const double here = std::max<double>(1, static_cast<double>(run.train->runs[k]));
    sum += here * pass_seconds(run, planned, k);
    runs += here;
  }
  return planned.seconds_of_update() + static_cast<double>(run.runs_per_step()) * sum / runs;
}

namespace {

std::int64_t trained_parameters(const fit::Request& r) {
  return t5::job_of(r).seq2seq.lora
             ? adapter_parameters(t5::job_of(r).seq2seq.config, t5::job_of(r).weights,
                                  *t5::job_of(r).seq2seq.lora)
             : parameter_count(t5::job_of(r).weights);
}

PlanFiles planned_files(const Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  TrainConfig saves;
  saves.output_dir = c.output_dir;
  if (!run.resume_from.empty()) saves.resume = run.resume_from;
  saves.optimizer = c.optimizer;
  saves.keep_checkpoints = c.keep_checkpoints;
  if (c.save_steps < 0) saves.checkpoint.epochs = 1;
  if (c.save_steps > 0) saves.checkpoint.steps = c.save_steps;
  const bool narrow = t5::job_of(run.request).seq2seq.format == WeightFormat::bf16 && !c.lora;
  const DType values = narrow ? DType::bf16 : DType::f32;
  return files_of({.config = saves,
                   .total_steps = run.total_steps,
                   .steps_per_epoch = run.steps_per_epoch,
                   .parameters = trained_parameters(run.request),
                   .trained = values,
                   .saved = c.save_dtype.value_or(values),
                   .in_output_dir = true,
                   .keeps_best = c.load_best},
                  run.request.profile.name == kThisMachine);
}

PassTimes passes_of(const Seq2SeqRun& run, const fit::PlannedRun& planned) {
  PassTimes passes = {.count = run.runs_per_step()};
  for (std::size_t k = 0; k < run.train->shapes.size(); ++k) {
    const double pass = pass_seconds(run, planned, k);
    passes.shortest = k == 0 ? pass : std::min(passes.shortest, pass);
    passes.longest = std::max(passes.longest, pass);
  }
  return passes;
}

}  // namespace

fit::Outcome plan_seq2seq(Seq2SeqRun& run) {
  auto best = fit::find_plan(run.request);
  const auto* alone = std::get_if<fit::PlannedRun>(&best);
  if (run.config.micro_batches_per_visit > 0 || !alone || !alone->policy.streams()) return best;
  const std::int64_t accumulation = run.config.accumulation;
  double seconds = seconds_per_step(run, *alone);
  std::int64_t shares = 1;
  // 2, 4, ...: of 16 four, not all, where activations of more would push blocks off the device.
  for (std::int64_t n = 2; n < 2 * accumulation; n *= 2) {
    share_visits(run, std::min(n, accumulation));
    auto more = fit::find_plan(run.request);
    const auto* planned = std::get_if<fit::PlannedRun>(&more);
    if (!planned || seconds_per_step(run, *planned) >= seconds) break;
    seconds = seconds_per_step(run, *planned);
    shares = run.micro_batches_per_visit;
    best = std::move(more);
  }
  share_visits(run, shares);
  if (shares > 1) {
    run.notes.push_back(
        fmt::format("{} micro-batches share a visit of the streamed blocks, padded alike "
                    "(--micro_batches_per_visit 1: none do)",
                    shares));
  }
  return best;
}

PlanTitle title_of(const Seq2SeqRun& run) {
  const fit::Request& r = run.request;
  const std::int64_t batch = run.config.batch_size * run.config.accumulation;
  return {.model = t5::job_of(r).seq2seq.config.name,
          .mode = t5::job_of(r).seq2seq.lora ? "LoRA" : "fine-tune",
          .shape = run.shapes,
          .weights = fmt::format(
              "{} weights, {}{}", name_of(t5::job_of(r).seq2seq.format),
              name_of(t5::job_of(r).seq2seq.optimizer.kind),
              t5::job_of(r).seq2seq.lora
                  ? fmt::format(", adapters of rank {}", t5::job_of(r).seq2seq.lora->rank)
                  : ""),
          .machine = machine_text(r.profile),
          .budget = r.budget,
          .shared_ram = r.profile.device == Device::cpu,
          .sizes = {.parameters = trained_parameters(r), .batch = batch, .min_batch = batch},
          .ram_of_this_machine = borrows_ram(r.profile, run.config.memory.ram.has_value())};
}

PlanView view_of(const Seq2SeqRun& run, const fit::PlannedRun& planned) {
  PlanView view = {.plan = planned.plan,
                   .times = planned.times,
                   .lines = planned.lines,
                   .policy = planned.policy.name,
                   .policy_text = t5::describe(run.model(), planned.policy)};
  const std::int64_t blocks = run.model().layers + run.model().decoder_layers;
  view.streamed_blocks =
      !planned.policy.streams()
          ? 0
          : std::max<std::int64_t>(0, blocks - planned.policy.streaming->resident_groups);
  view.step_seconds = {seconds_per_step(run, planned)};
  view.passes = {passes_of(run, planned)};
  view.steps_of_kind = {run.steps_per_epoch};
  view.total_steps = run.total_steps;
  view.notes = run.notes;
  view.files = planned_files(run);
  return view;
}

namespace {

// The type of what is updated, as the reader decides it.
DType updated_type(const Seq2SeqConfig& c, WeightFormat weights, bool lora) {
  const bool narrow = c.dialect == Seq2SeqDialect::fine_tune && weights == WeightFormat::bf16;
  return narrow && !lora ? DType::bf16 : DType::f32;
}

// As the reader has it when another optimizer or type of weights is named: what was set by hand
// stays.
OptimizerOptions settled(OptimizerOptions o, OptimizerKind kind, DType before, DType after) {
  const auto usual = [](OptimizerKind k, DType updated) {
    OptimizerOptions d = optimizer_defaults(k, updated);
    if (updated == DType::bf16 && d.rounding == UpdateRounding::nearest) {
      d.rounding = UpdateRounding::stochastic;
    }
    return d;
  };
  const OptimizerOptions then = usual(o.kind, before), now = usual(kind, after);
  o.kind = kind;
  if (o.state_dtype == then.state_dtype) o.state_dtype = now.state_dtype;
  if (o.rounding == then.rounding) o.rounding = now.rounding;
  return o;
}

}  // namespace

std::vector<fit::Change> possible_changes(const Seq2SeqRun& run, const Refusal& refusal) {
  const Seq2SeqConfig& c = run.config;
  const DType updated = c.weights ? updated_type(c, *c.weights, c.lora.has_value()) : DType::f32;
  // Without a GPU, and without a budget of its own for the compute share, the RAM bounds both.
  const bool ram_bounds_all = run.request.backend.device == Device::cpu && !c.memory.gpu;
  std::vector<fit::Change> all = fit::larger_budgets(refusal, ram_bounds_all, run.request.budget);
  for (const std::int64_t batch : {c.batch_size / 2, std::int64_t{1}}) {
    if (batch < 1 || batch >= c.batch_size) continue;
    const std::int64_t steps = (c.accumulation * c.batch_size + batch - 1) / batch;
    all.push_back({fmt::format("--batch-size {} --gradient-accumulation-steps {}", batch, steps),
                   [batch, steps](fit::Request& r) {
                     for (t5::BatchShape& b : t5::job_of(r).seq2seq.batches) b.samples = batch;
                     const std::int64_t shared = t5::job_of(r).seq2seq.batches[0].micro_batches;
                     t5::job_of(r).runs_per_step = (steps + shared - 1) / shared;
                     t5::job_of(r).seq2seq.accumulates = t5::job_of(r).runs_per_step > 1;
                   }});
  }
  const bool begins = !c.resume;  // a checkpoint continues with what it trains, and its optimizer
  if (begins && !c.lora) {  // what is left of optimizer, gradients and masters is that of adapters
    all.push_back({fmt::format("--lora_rank {}", LoraOptions().rank), [updated](fit::Request& r) {
                     t5::job_of(r).seq2seq.lora.emplace();
                     OptimizerOptions& o = t5::job_of(r).seq2seq.optimizer;
                     o = settled(o, o.kind, updated, DType::f32);
                     o.rounding = optimizer_defaults(o.kind, DType::f32).rounding;
                   }});
  } else if (begins && c.lora->rank > 4) {
    const std::int64_t rank = c.lora->rank / 2;
    all.push_back({fmt::format("--lora_rank {}", rank),
                   [rank](fit::Request& r) { t5::job_of(r).seq2seq.lora->rank = rank; }});
  }
  const auto optimizer = [&](const char* text, OptimizerKind kind) {
    if (c.optimizer.kind == kind || !begins) return;
    all.push_back({text, [kind, updated](fit::Request& r) {
                     t5::job_of(r).seq2seq.optimizer =
                         settled(t5::job_of(r).seq2seq.optimizer, kind, updated, updated);
                   }});
  };
  optimizer("--optim adamw_bnb_8bit", OptimizerKind::adamw8bit);
  optimizer("--optim adafactor", OptimizerKind::adafactor);
  if (c.lora) {
    if (t5::job_of(run.request).seq2seq.format != WeightFormat::bf16) {
      all.push_back({"--weights bf16",
                     [](fit::Request& r) { t5::job_of(r).seq2seq.format = WeightFormat::bf16; }});
    }
  } else if (begins && (t5::job_of(run.request).seq2seq.format != WeightFormat::bf16 ||
                        c.optimizer.rounding == UpdateRounding::nearest)) {
    const DType then = updated_type(c, WeightFormat::bf16, false);
    all.push_back({"--weights bf16 --rounding stochastic", [updated, then](fit::Request& r) {
                     t5::job_of(r).seq2seq.format = WeightFormat::bf16;
                     OptimizerOptions& o = t5::job_of(r).seq2seq.optimizer;
                     o = settled(o, o.kind, updated, then);
                     o.rounding = UpdateRounding::stochastic;
                   }});
  }
  if (begins && c.gradients == DType::f32 && !c.lora) {
    all.push_back({"--gradient_dtype bf16",
                   [](fit::Request& r) { t5::job_of(r).seq2seq.gradient = DType::bf16; }});
  }
  const bool own_length = c.generation_length > 0;  // of texts that are written
  const auto shorter = [own_length](std::int64_t source, std::int64_t target) {
    return [=](fit::Request& r) {
      for (auto* batches : {&t5::job_of(r).seq2seq.batches, &t5::job_of(r).seq2seq.eval_batches}) {
        for (t5::BatchShape& b : *batches) {
          b.source = std::min(b.source, source), b.target = std::min(b.target, target);
        }
      }
      if (t5::job_of(r).seq2seq.writes && !own_length) {
        t5::job_of(r).seq2seq.writes->positions =
            std::min(t5::job_of(r).seq2seq.writes->positions, target);
      }
    };
  };
  const data::PairLength longest = run.train->shapes.front();
  const auto half = [&](std::int64_t tokens) {  // padded to a multiple
    const std::int64_t least = std::max<std::int64_t>(1, tokens / 2);
    return (least + c.pad_multiple - 1) / c.pad_multiple * c.pad_multiple;
  };
  const std::int64_t source = half(longest.source), target = half(longest.target);
  if (source < longest.source || target < longest.target) {
    all.push_back({fmt::format("--max_source_length {} --max_target_length {}", source, target),
                   shorter(source, target)});
  }
  if (run.request.policy) {
    all.push_back({"--policy auto", [](fit::Request& r) { r.policy.reset(); }});
  }
  return all;
}

}  // namespace ballast::train
