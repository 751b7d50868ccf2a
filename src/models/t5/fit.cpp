#include "models/t5/fit.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/error.h"
#include "ops/quantum.h"
#include "ops/sgemm.h"

namespace ballast::t5 {
namespace {

std::vector<ProcessLine> lines_for(const FitRequest& request, const ProgramSet& set, Bytes host) {
  std::vector<ProcessLine> lines =
      process_lines(set, {.blas_bytes_per_thread = ops::kBlasBufferTouched});
  if (request.backend.device == Device::cuda) add_gpu_lines(lines, request.profile, host);
  lines.insert(lines.end(), request.other_lines.begin(), request.other_lines.end());
  return lines;
}

ProgramSet record(const FitRequest& request, const MemoryPolicy& policy) {
  ProgramSet set;
  set.backend = request.backend;
  set.executable = false;
  Seq2SeqJob job = request.job;
  job.policy = policy;
  const Seq2Seq model(set, std::move(job), request.groups);
  return set;
}

// By the bytes alive at once: a packed plan needs no less.
struct Needs {
  Bytes device, host;
};
Needs least_needs(const FitRequest& request, const MemoryPolicy& policy) {
  const ProgramSet set = record(request, policy);
  const auto live = live_bytes(set);
  const std::vector<ProcessLine> lines = lines_for(request, set, live[1]);
  return {.device = live[0] + sum_lines(lines, Tier::device),
          .host = live[1] + sum_lines(lines, Tier::host)};
}

Bytes less(Bytes a, Bytes b) { return a > b ? a - b : Bytes{}; }

Bytes excess(const FitRequest& request, const Needs& n) {
  const bool shared = request.backend.device == Device::cpu;
  return less(n.device, request.budget.gpu) +
         less(shared ? n.host + n.device : n.host, request.budget.host);
}

Bytes excess(const std::vector<Shortage>& missing) {
  Bytes sum;
  for (const Shortage& s : missing) sum += s.needed - s.allowed;
  return sum;
}

std::int64_t rows_of(const BatchShape& b) {
  return b.micro_batches * b.samples * (b.source + b.target);
}

// The same with the heaviest step and evaluation only, which decide the peaks in all but odd cases.
FitRequest heaviest(const FitRequest& request) {
  FitRequest r = request;
  for (auto* batches : {&r.job.batches, &r.job.eval_batches}) {
    if (batches->empty()) continue;
    std::swap(batches->front(), *std::ranges::max_element(*batches, {}, rows_of));
    batches->resize(1);
  }
  return r;
}

MemoryPolicy resident(Activations a) {
  return {.name = a == Activations::kept ? "resident" : "recompute", .activations = a};
}

MemoryPolicy streamed(int slots, Activations a) {
  return {.name = fmt::format("stream{}{}", slots, a == Activations::kept ? "" : " recompute"),
          .slots = slots,
          .home = WeightHome::host,
          .activations = a};
}

// What needs least of the device: one slot, matrix by matrix, and everything else in host memory.
MemoryPolicy leanest(const FitRequest& request) {
  if (request.offloading == Choice::off) return resident(Activations::recomputed);
  MemoryPolicy p = streamed(1, Activations::recomputed);
  p.name = "lowest-memory";
  p.parts = 1;
  p.offload = request.backend.device == Device::cuda;
  p.chunk_tokens = kTokenQuantum;
  p.heads_per_group = 4;
  return p;
}

// Fastest first; each list is leaner than the one before it.
std::vector<std::vector<MemoryPolicy>> candidates(const FitRequest& r) {
  std::vector<std::vector<MemoryPolicy>> lists(3);
  const bool keeps = r.checkpointing != Choice::on, again = r.checkpointing != Choice::off;
  if (r.offloading != Choice::on) {
    if (keeps) lists[0].push_back(resident(Activations::kept));
    if (again) lists[1].push_back(resident(Activations::recomputed));
  }
  if (r.offloading != Choice::off) {
    if (keeps) lists[1].push_back(streamed(2, Activations::kept));
    if (again) {
      lists[1].push_back(streamed(2, Activations::recomputed));
      lists[2].push_back(streamed(1, Activations::recomputed));
      lists[2].push_back(leanest(r));
    }
  }
  return lists;
}

// As much of a way to spend memory as the device has room for: the largest n with which the plan
// fits, from `most` downwards.
std::optional<PlannedRun> with_most(const FitRequest& request, MemoryPolicy policy,
                                    int MemoryPolicy::*what, int most) {
  int low = -1, high = most + 1;  // fits with low, not with high
  while (high - low > 1) {
    const int n = (low + high) / 2;
    policy.*what = n;
    const Needs needs = least_needs(request, policy);
    // In host memory less is needed the more stays.
    const bool fits = request.backend.device == Device::cpu ? excess(request, needs).count == 0
                                                            : needs.device <= request.budget.gpu;
    (fits ? low : high) = n;
  }
  constexpr int kTries = 4;  // packing takes a little more than what is alive
  for (int n = low; n >= 0 && n > low - kTries; --n) {
    policy.*what = n;
    // Fewer that stay need no less of the host.
    if (excess(request, least_needs(request, policy)).count > 0) return std::nullopt;
    PlannedRun run = plan_run(request, policy);
    if (shortages(request, run).empty()) return run;
  }
  return std::nullopt;
}

std::optional<PlannedRun> try_policy(const FitRequest& request, const MemoryPolicy& policy) {
  const Config& c = request.job.config;
  if (policy.slots > 0) {
    return with_most(request, policy, &MemoryPolicy::resident_groups, group_count(c) - 1);
  }
  if (policy.activations != Activations::kept && request.checkpointing != Choice::on) {
    return with_most(request, policy, &MemoryPolicy::kept_blocks,
                     static_cast<int>(c.layers + c.decoder_layers) - 1);
  }
  if (excess(request, least_needs(request, policy)).count > 0) return std::nullopt;
  PlannedRun run = plan_run(request, policy);
  if (shortages(request, run).empty()) return run;
  return std::nullopt;
}

Refusal refusal(std::string policy, const FitRequest& request, const PlannedRun& run) {
  return {.policy = std::move(policy),
          .needed = {run.needed(Tier::device), run.needed(Tier::host), run.needed(Tier::disk)},
          .shortages = shortages(request, run),
          .seconds_per_step = run.seconds_per_step()};
}

// Of what would have to fit the one that misses least.
Refusal refuse(const FitRequest& request) {
  MemoryPolicy closest = leanest(request);
  const MemoryPolicy other = request.checkpointing == Choice::off
                                 ? resident(Activations::kept)
                                 : resident(Activations::recomputed);
  if (request.offloading != Choice::on && excess(request, least_needs(request, other)) <
                                              excess(request, least_needs(request, closest))) {
    closest = other;
  }
  return refusal("the lowest-memory plan", request, plan_run(request, closest));
}

}  // namespace

Bytes PlannedRun::lines_of(Tier t) const { return sum_lines(lines, t); }

double PlannedRun::seconds_of_step(std::size_t kind, std::int64_t runs) const {
  const std::string step = kind == 0 ? "step" : fmt::format("step.{}", kind);
  double sum = 0;
  for (std::size_t p = 0; p < set.programs.size(); ++p) {
    const std::string& name = set.programs[p].name;
    if (name == step) sum += static_cast<double>(runs) * times[p].seconds;
    if (name == "grad_norm" || name == "update" || name == "zero_gradients") {
      sum += times[p].seconds;
    }
  }
  return sum;
}

PlannedRun plan_run(const FitRequest& request, const MemoryPolicy& policy) {
  PlannedRun run;
  run.policy = policy;
  run.runs_per_step = request.runs_per_step;
  run.set = record(request, policy);
  run.plan = plan_memory(run.set);
  run.lines = lines_for(request, run.set, run.plan.peak_of(Tier::host));
  for (int p = 0; p < static_cast<int>(run.set.programs.size()); ++p) {
    run.times.push_back(predict(run.set, run.plan, p, request.profile));
  }
  return run;
}

std::vector<Shortage> shortages(const FitRequest& request, const PlannedRun& run) {
  const Bytes device = run.needed(Tier::device);
  Bytes host = run.needed(Tier::host);
  if (request.backend.device == Device::cpu) host += device;
  return ballast::shortages(run.plan, {device, host, Bytes{}},
                            {request.budget.gpu, request.budget.host, Bytes{}});
}

std::variant<PlannedRun, Refusal> fit(const FitRequest& request) {
  if (request.policy) {
    PlannedRun run = plan_run(request, *request.policy);
    if (shortages(request, run).empty()) return run;
    return refusal(request.policy->name, request, run);
  }
  const FitRequest search = heaviest(request);
  std::optional<PlannedRun> best;
  for (const std::vector<MemoryPolicy>& list : candidates(search)) {
    for (const MemoryPolicy& p : list) {
      auto run = try_policy(search, p);
      if (!run || (best && best->seconds_per_step() <= run->seconds_per_step())) continue;
      best = std::move(run);
    }
    if (best) break;
  }
  if (!best) return refuse(request);
  // All kinds of steps: their recordings take room as well, and one may be odd.
  MemoryPolicy policy = best->policy;
  while (true) {
    PlannedRun run = plan_run(request, policy);
    if (shortages(request, run).empty()) return run;
    int& filled = policy.slots > 0 ? policy.resident_groups : policy.kept_blocks;
    if (filled == 0) return refusal(policy.name, request, run);
    --filled;
  }
}

std::vector<PlannedChange> try_changes(const FitRequest& request, const Refusal& refusal,
                                       const std::vector<Change>& changes) {
  std::vector<PlannedChange> all;
  for (const Change& change : changes) {
    FitRequest r = request;
    change.apply(r);
    PlannedChange p;
    p.text = change.text;
    const auto outcome = fit(r);
    if (const auto* run = std::get_if<PlannedRun>(&outcome)) {
      p.fits = true;
      for (const Tier t : kTiers) p.needed[static_cast<std::size_t>(t)] = run->needed(t);
      p.step_seconds = run->seconds_per_step();
    } else {
      const auto& still = std::get<Refusal>(outcome);
      p.needed = still.needed;
      p.missing = excess(still.shortages);
      p.step_seconds = still.seconds_per_step;
      p.frees_device = less(refusal.needed[0], still.needed[0]);
      p.frees_host = less(refusal.needed[1], still.needed[1]);
    }
    p.step_factor = p.step_seconds / refusal.seconds_per_step;
    all.push_back(std::move(p));
  }
  std::ranges::stable_sort(all, [](const PlannedChange& a, const PlannedChange& b) {
    return std::tuple(!a.fits, a.missing, a.step_seconds) <
           std::tuple(!b.fits, b.missing, b.step_seconds);
  });
  return all;
}

std::string describe(const Config& config, const MemoryPolicy& policy) {
  const std::int64_t blocks = config.layers + config.decoder_layers;
  std::int64_t stay = 0;
  for (std::int64_t b = 0; b < blocks; ++b) {
    stay += policy.slots == 0 || evenly_chosen(b + 1, group_count(config), policy.resident_groups);
  }
  std::string text =
      policy.slots == 0
          ? fmt::format("all {} blocks resident", blocks)
          : fmt::format("{} of {} blocks resident, {} streamed from RAM through {} slot{}", stay,
                        blocks, blocks - stay, policy.slots, policy.slots == 1 ? "" : "s");
  text += policy.activations == Activations::kept ? "; keeps all activations"
          : policy.kept_blocks > 0
              ? fmt::format("; keeps activations of {} blocks, recomputes the others",
                            policy.kept_blocks)
              : "; recomputes activations";
  if (policy.offload) text += ", block inputs in RAM";
  return text;
}

}  // namespace ballast::t5
