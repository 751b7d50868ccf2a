#include "models/wan/fit_switched.h"

#include <algorithm>

#include "models/wan/job_needs.h"

namespace ballast::wan {
namespace {

std::vector<Activations> activations_of(const FitRequest& r) {
  if (r.job.mode == Mode::infer) return {Activations::kept};  // no backward pass reads any
  switch (r.checkpointing) {
    case Choice::off:
      return {Activations::kept};
    case Choice::on:
      return {Activations::attention_kept, Activations::recomputed};
    case Choice::automatic:
      break;
  }
  return {Activations::kept, Activations::attention_kept, Activations::recomputed};
}

// Where weights, and with them what waits for backward, may be.
std::vector<MemoryPolicy> places_of(const FitRequest& r) {
  const bool trains = r.job.mode != Mode::infer;
  std::vector<MemoryPolicy> places;
  if (r.offloading != Choice::on) places.push_back({.name = "auto"});
  if (r.offloading == Choice::off) return places;
  places.push_back({.name = "auto", .slots = 2, .home = WeightHome::host, .offload = trains});
  const WeightHome lean = r.job.mode == Mode::full ? WeightHome::host : WeightHome::disk;
  places.push_back({.name = "auto", .slots = 2, .home = lean, .offload = trains});
  MemoryPolicy last = {.name = "auto", .slots = 1, .home = lean, .offload = trains};
  if (trains) last.heads_per_group = few_heads(r.job);
  places.push_back(last);
  last.state_on_host = r.job.mode == Mode::lora;
  if (last.state_on_host) places.push_back(last);
  last.parts = kPartsAhead;
  last.halves = trains;
  places.push_back(last);
  return places;
}

}  // namespace

std::vector<MemoryPolicy> switched_policies(const FitRequest& request) {
  const bool several = several_samples(request.job);
  std::vector<MemoryPolicy> all;
  for (const MemoryPolicy& place : places_of(request)) {
    for (const Activations activations : activations_of(request)) {
      for (const std::int64_t chunk : {std::int64_t{0}, wide_chunk(request.job)}) {
        MemoryPolicy p = place;
        p.activations = activations;
        p.chunk_tokens = chunk;
        all.push_back(p);
        if (!several) continue;
        p.samples_per_run = 1;
        all.push_back(std::move(p));
      }
    }
  }
  return all;
}

std::variant<PlannedRun, Refusal> fit_switched(const FitRequest& request) {
  struct Candidate {
    MemoryPolicy policy;
    Bytes missing;       // at least
    double soonest = 0;  // no step takes less
  };
  std::vector<Candidate> all;
  for (MemoryPolicy& p : switched_policies(request)) {
    const LeastNeeds needs = least_needs(request, p);
    all.push_back({std::move(p), excess(request, needs), least_seconds(needs, request.profile)});
  }
  std::ranges::stable_sort(all, {}, &Candidate::missing);
  std::optional<PlannedRun> best;
  std::optional<Refusal> closest;
  Bytes least;
  for (const Candidate& c : all) {
    if (best && (c.missing.count > 0 || best->seconds_per_step() <= c.soonest)) continue;
    if (closest && c.missing.count > 0 && least <= c.missing) break;
    PlannedRun run = plan_run(request, c.policy);
    std::vector<Shortage> missing = shortages(request, run);
    if (missing.empty()) {
      if (!best || run.seconds_per_step() < best->seconds_per_step()) best = std::move(run);
      continue;
    }
    const Bytes now = excess(missing);
    if (best || (closest && least <= now)) continue;
    least = now;
    closest = {.policy = "the lowest-memory plan that the switches allow",
               .needed = {run.needed(Tier::device), run.needed(Tier::host), run.needed(Tier::disk)},
               .shortages = std::move(missing),
               .seconds_per_step = run.seconds_per_step()};
  }
  if (best) return std::move(*best);
  return std::move(*closest);
}

}  // namespace ballast::wan
