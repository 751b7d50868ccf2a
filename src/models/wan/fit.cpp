#include "models/wan/fit.h"

#include <algorithm>

#include "core/error.h"
#include "ops/quantum.h"
#include "ops/sgemm.h"

namespace ballast::wan {
namespace {

// What is tried, fastest first: weights stay before they stream, activations are kept before they
// are computed again, host memory is used before disk.
std::vector<MemoryPolicy> candidates(const DitJob& job) {
  const bool trains = job.mode != Mode::infer;
  // At most 8 or 16 chunks: more of them save little and make programs long.
  std::int64_t tokens = 0;
  for (const LatentSize& z : job.latents) tokens = std::max(tokens, z.tokens());
  const auto chunk = [&](std::int64_t least, std::int64_t pieces) {
    const std::int64_t rows = std::max(least, tokens / pieces);
    return (rows + kTokenQuantum - 1) / kTokenQuantum * kTokenQuantum;
  };
  const std::int64_t wide = chunk(2 * kTokenQuantum, 8), narrow = chunk(kTokenQuantum, 16);
  std::vector<MemoryPolicy> all;
  const auto add = [&](MemoryPolicy p) {
    p.name = "auto";
    all.push_back(std::move(p));
  };
  constexpr auto kept = Activations::kept, attention = Activations::attention_kept,
                 recomputed = Activations::recomputed;
  if (!trains) {
    add({});
    add({.chunk_tokens = wide});
    add({.slots = 2, .home = WeightHome::host, .chunk_tokens = wide});
    add({.slots = 2, .chunk_tokens = wide});
    add({.slots = 1, .chunk_tokens = narrow});
    return all;
  }
  add({.activations = kept});
  add({.activations = attention, .chunk_tokens = wide});
  add({.activations = recomputed, .chunk_tokens = wide});
  add({.activations = attention, .offload = true, .chunk_tokens = wide});
  for (const WeightHome home : {WeightHome::host, WeightHome::disk}) {
    if (home == WeightHome::disk && job.mode == Mode::full) continue;
    add({.slots = 2, .home = home, .activations = attention, .chunk_tokens = wide});
    add({.slots = 2, .home = home, .activations = recomputed, .chunk_tokens = wide});
    add({.slots = 2,
         .home = home,
         .activations = attention,
         .offload = true,
         .chunk_tokens = wide});
    add({.slots = 2,
         .home = home,
         .activations = recomputed,
         .offload = true,
         .chunk_tokens = wide});
  }
  const WeightHome last = job.mode == Mode::full ? WeightHome::host : WeightHome::disk;
  add({.slots = 1,
       .home = last,
       .activations = recomputed,
       .offload = true,
       .chunk_tokens = narrow,
       .heads_per_group = 4});
  return all;
}

struct Recorded {
  MemoryPolicy policy;
  ProgramSet set;
};

Recorded record(const FitRequest& request, const MemoryPolicy& policy) {
  Recorded r;
  r.policy = policy;
  r.set.backend = request.backend;
  r.set.executable = false;
  DitJob job = request.job;
  job.policy = policy;
  const Dit dit(r.set, std::move(job), request.groups);
  return r;
}

std::vector<ProcessLine> lines_for(const FitRequest& request, const ProgramSet& set) {
  std::vector<ProcessLine> lines =
      process_lines(set, {.blas_bytes_per_thread = Bytes{ops::kBlasBufferTouched}});
  if (request.backend.device == Device::cuda) {
    lines.push_back({.name = "CUDA context and libraries",
                     .bytes = request.profile.library_bytes,
                     .reason = "context, cuBLASLt and cuDNN handles",
                     .tier = Tier::device});
  }
  return lines;
}

Bytes sum_lines(const std::vector<ProcessLine>& lines, Tier t) {
  Bytes sum;
  for (const ProcessLine& l : lines) {
    if (l.tier == t) sum += l.bytes;
  }
  return sum;
}

// Whether device, host and disk needs are inside the budget.
bool within(const FitRequest& request, Bytes device, Bytes host, Bytes disk) {
  const bool shared = request.backend.device == Device::cpu;
  return device <= request.budget.gpu && (shared ? device + host : host) <= request.budget.host &&
         disk <= request.budget.disk;
}

struct Needs {
  Bytes device, host, disk;
};

// By the bytes alive at once, before anything is packed: a plan can only need more.
Needs live_needs(const FitRequest& request, const Recorded& recorded) {
  const auto live = live_bytes(recorded.set);
  const std::vector<ProcessLine> lines = lines_for(request, recorded.set);
  return {live[0] + sum_lines(lines, Tier::device), live[1] + sum_lines(lines, Tier::host),
          live[2]};
}

bool live_fits(const FitRequest& request, const Recorded& recorded) {
  const Needs n = live_needs(request, recorded);
  return within(request, n.device, n.host, n.disk);
}

Bytes group_bytes(const Recorded& recorded) {
  std::uint64_t group = 1;
  for (const BufferSpec& s : recorded.set.buffers) {
    if (s.role == Role::weight_slots && s.program == kPersistent) group = std::max(group, s.bytes);
  }
  return {group};
}

PlannedRun complete(const FitRequest& request, Recorded recorded) {
  PlannedRun run;
  run.policy = recorded.policy;
  run.set = std::move(recorded.set);
  run.plan = plan_memory(run.set);
  run.lines = lines_for(request, run.set);
  for (int p = 0; p < static_cast<int>(run.set.programs.size()); ++p) {
    run.times.push_back(predict(run.set, run.plan, p, request.profile));
  }
  return run;
}

// As many groups resident as the budget allows. A group that stays may take more than its weights
// with it (gradients, moments), so what one more costs is learned from the plans that were too big.
std::optional<PlannedRun> fill_with_groups(const FitRequest& request, Recorded lean) {
  const Bytes least = live_needs(request, lean).device;
  double per_group = static_cast<double>(group_bytes(lean).count);
  const auto room = [&](const Needs& n) {
    Bytes most = request.budget.gpu;
    if (request.backend.device == Device::cpu) {
      most = std::min(most, request.budget.host - std::min(n.host, request.budget.host));
    }
    return static_cast<double>((most - std::min(least, most)).count);
  };
  const double free_bytes = room(live_needs(request, lean));
  int groups =
      std::min(static_cast<int>(free_bytes / per_group), group_count(request.job.config) - 1);
  MemoryPolicy policy = lean.policy;
  while (groups > 0) {
    policy.resident_groups = groups;
    Recorded fuller = record(request, policy);
    const Needs needs = live_needs(request, fuller);
    if (within(request, needs.device, needs.host, needs.disk)) {
      PlannedRun run = complete(request, std::move(fuller));
      if (shortages(request, run).empty()) return run;
      --groups;
      continue;
    }
    per_group = static_cast<double>((needs.device - least).count) / groups;
    groups = std::min(groups - 1, static_cast<int>(free_bytes / per_group));
  }
  return complete(request, std::move(lean));
}

}  // namespace

Bytes PlannedRun::lines_of(Tier t) const { return sum_lines(lines, t); }

const PredictedTime& PlannedRun::step_time() const {
  return times[static_cast<std::size_t>(set.program_index("step"))];
}

PlannedRun plan_run(const FitRequest& request, const MemoryPolicy& policy) {
  return complete(request, record(request, policy));
}

std::vector<Shortage> shortages(const FitRequest& request, const PlannedRun& run) {
  std::vector<Shortage> all;
  const auto check_tier = [&](Tier tier, Bytes needed, Bytes allowed) {
    if (needed <= allowed) return;
    const ProgramUse* worst = &run.plan.programs.front();
    for (const ProgramUse& p : run.plan.programs) {
      if (p.tier(tier).peak > worst->tier(tier).peak) worst = &p;
    }
    all.push_back({.tier = tier,
                   .program = worst->name,
                   .at = worst->tier(tier).at,
                   .needed = needed,
                   .allowed = allowed,
                   .roles = worst->tier(tier).roles});
  };
  const Bytes device = run.needed(Tier::device);
  Bytes host = run.needed(Tier::host);
  if (request.backend.device == Device::cpu) host += device;
  check_tier(Tier::device, device, request.budget.gpu);
  check_tier(Tier::host, host, request.budget.host);
  check_tier(Tier::disk, run.needed(Tier::disk), request.budget.disk);
  return all;
}

namespace {

Refusal refusal(std::string policy, const PlannedRun& run, std::vector<Shortage> missing) {
  return {.policy = std::move(policy),
          .needed = {run.needed(Tier::device), run.needed(Tier::host), run.needed(Tier::disk)},
          .shortages = std::move(missing)};
}

}  // namespace

std::variant<PlannedRun, Refusal> fit(const FitRequest& request) {
  if (request.policy) {
    PlannedRun run = plan_run(request, *request.policy);
    std::vector<Shortage> missing = shortages(request, run);
    if (missing.empty()) return run;
    return refusal(request.policy->name, run, std::move(missing));
  }
  std::optional<PlannedRun> best;
  const std::vector<MemoryPolicy> all = candidates(request.job);
  // The last candidate needs least of the device; of the host others may need less.
  if (live_needs(request, record(request, all.back())).device > request.budget.gpu) {
    const PlannedRun leanest = plan_run(request, all.back());
    return refusal("the leanest policy", leanest, shortages(request, leanest));
  }
  for (const MemoryPolicy& policy : all) {
    // Recording costs tens of milliseconds, packing more: most candidates fall to the live bytes.
    Recorded recorded = record(request, policy);
    // In full training every group that stays takes its state from the host to the device.
    const bool host_may_shrink = policy.slots > 0 && request.job.mode == Mode::full;
    if (!host_may_shrink && !live_fits(request, recorded)) continue;
    std::optional<PlannedRun> run = policy.slots > 0
                                        ? fill_with_groups(request, std::move(recorded))
                                        : complete(request, std::move(recorded));
    if (!run || !shortages(request, *run).empty()) continue;
    const bool faster = !best || run->step_time().seconds < best->step_time().seconds;
    if (faster) best = std::move(run);
    if (best->policy.slots == 0 ||
        best->step_time().exposed_stall < 0.02 * best->step_time().seconds) {
      break;  // later candidates only save memory
    }
  }
  if (best) return std::move(*best);
  const PlannedRun leanest = plan_run(request, all.back());
  return refusal("the leanest policy", leanest, shortages(request, leanest));
}

// ---------------------------------------------------------------- advice

namespace {

struct Trial {
  std::string change;
  FitRequest request;
};

// Bytes over budget in all tiers together.
Bytes excess(const std::vector<Shortage>& missing) {
  Bytes sum;
  for (const Shortage& s : missing) sum += s.needed - s.allowed;
  return sum;
}

}  // namespace

std::vector<Advice> advise(const FitRequest& request, std::int64_t frames, std::int64_t height,
                           std::int64_t width) {
  const Config& c = request.job.config;
  const auto lean_policy = [](const FitRequest& r) {
    return r.policy ? *r.policy : candidates(r.job).back();
  };
  const auto leanest = [&](const FitRequest& r) { return plan_run(r, lean_policy(r)); };
  const PlannedRun now = leanest(request);
  const std::vector<Shortage> missing = shortages(request, now);

  std::vector<Trial> trials;
  const auto with = [&](std::string change, auto&& edit) {
    Trial t = {std::move(change), request};
    edit(t.request);
    trials.push_back(std::move(t));
  };
  for (const Shortage& s : missing) {
    const char* flag = s.tier == Tier::device ? "--gpu" : s.tier == Tier::host ? "--ram" : "--disk";
    const std::uint64_t mb = (s.needed.count + 999999) / 1000000;
    with(fmt::format("{} {}MB", flag, mb), [&](FitRequest& r) {
      Bytes& b = s.tier == Tier::device ? r.budget.gpu
                 : s.tier == Tier::host ? r.budget.host
                                        : r.budget.disk;
      b = Bytes{mb * 1000000};
    });
  }
  const auto resize = [&](FitRequest& r, std::int64_t f, std::int64_t h, std::int64_t w) {
    for (LatentSize& z : r.job.latents) z = latent_size(c, f, h, w);
  };
  // The largest clip that fits: peaks grow with tokens, so halve the interval.
  const auto fits_with = [&](std::int64_t f) {
    FitRequest r = request;
    resize(r, f, height, width);
    return live_fits(r, record(r, lean_policy(r)));
  };
  std::int64_t low = 0, high = (frames - 1) / 4;  // frames = 4 n + 1
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (fits_with(4 * middle + 1)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (const std::int64_t n = std::max<std::int64_t>(0, low - 1); 4 * n + 1 < frames) {
    with(fmt::format("--frames {}", 4 * n + 1),
         [&](FitRequest& r) { resize(r, 4 * n + 1, height, width); });
  }
  const std::int64_t step = 2 * c.spatial_stride;
  const auto smaller = [&](std::int64_t pixels) {
    return std::max(step, pixels * 3 / 4 / step * step);
  };
  if (smaller(height) < height || smaller(width) < width) {
    with(fmt::format("--height {} --width {}", smaller(height), smaller(width)),
         [&](FitRequest& r) { resize(r, frames, smaller(height), smaller(width)); });
  }
  if (request.job.format != WeightFormat::f8_e4m3 && request.job.mode != Mode::full) {
    with("--weights fp8", [](FitRequest& r) { r.job.format = WeightFormat::f8_e4m3; });
  }
  if (request.job.mode == Mode::lora && request.job.lora.rank > 1) {
    with(fmt::format("--rank {}", request.job.lora.rank / 2),
         [](FitRequest& r) { r.job.lora.rank /= 2; });
  }
  if (request.job.mode == Mode::full) {
    with("--mode lora", [](FitRequest& r) { r.job.mode = Mode::lora; });
  }
  if (request.job.latents.size() > 1) {
    with(fmt::format("--batch {}", request.job.latents.size() / 2),
         [](FitRequest& r) { r.job.latents.resize(r.job.latents.size() / 2); });
  }
  if (request.policy) with("--policy auto", [](FitRequest& r) { r.policy.reset(); });

  struct Ranked {
    Bytes left;
    double seconds;
    Advice advice;
  };
  std::vector<Ranked> ranked;
  for (const Trial& t : trials) {
    const PlannedRun run = leanest(t.request);
    const std::vector<Shortage> still = shortages(t.request, run);
    const double factor = run.step_time().seconds / now.step_time().seconds;
    std::string effect = still.empty() ? "fits" : fmt::format("still {} short", excess(still));
    for (const Shortage& s : missing) {
      const Bytes before = now.needed(s.tier), after = run.needed(s.tier);
      if (before > after) {
        effect += fmt::format(", frees {} of {} memory", before - after, name_of(s.tier));
      }
    }
    effect += fmt::format(", step time x {:.2f}", factor);
    ranked.push_back({excess(still), run.step_time().seconds, {t.change, std::move(effect)}});
  }
  std::ranges::stable_sort(ranked, [](const Ranked& a, const Ranked& b) {
    return std::pair(a.left, a.seconds) < std::pair(b.left, b.seconds);
  });
  std::vector<Advice> advice;
  for (Ranked& r : ranked) advice.push_back(std::move(r.advice));
  return advice;
}

}  // namespace ballast::wan
