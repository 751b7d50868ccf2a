#include "models/wan_vae/fit.h"

#include <fmt/format.h>

#include <optional>

#include "ops/sgemm.h"
#include "plan/predict.h"

namespace ballast::wan_vae {
namespace {

PlannedVae plan_with(const FitRequest& r, const Policy& policy) {
  ProgramSet set;
  set.backend = r.backend;
  set.executable = false;
  Job job = r.job;
  job.policy = policy;
  const Vae vae(set, job, r.encoder, r.decoder);
  PlannedVae p = {
      .policy = policy, .plan = plan_memory(set), .lines = {}, .device = {}, .host = {}};
  // The last program is that of a following chunk, if there are any. Without a profile all take as
  // long.
  const auto last = static_cast<int>(set.programs.size()) - 1;
  if (r.profile.gemm_flops > 0) p.seconds = predict(set, p.plan, last, r.profile).seconds;
  NeededMemory needed = needed_memory(set, p.plan, r.profile, r.other_lines);
  p.lines = std::move(needed.lines);
  p.device = needed.device;
  p.host = needed.host;
  return p;
}

bool fits(Bytes needed, Bytes allowed) { return allowed.count == 0 || needed <= allowed; }

Refusal refusal_of(const FitRequest& r, const PlannedVae& p) {
  return {.policy = policy_text(p.policy),
          .needed = {p.device, p.host, Bytes{}},
          .shortages = shortages(p.plan, p.device, p.host, r.budget),
          .seconds_per_step = 0};
}

// Those of a decoder that are used once for a chunk, whatever its frames do.
std::size_t units_before_slices(const Job& job) {
  if (!job.decode) return ~std::size_t{};
  std::size_t units = 0;
  for (const Stage& s : decoder(job.config)) {
    for (const Unit& u : s.units) {
      ++units;
      if (u.kind == UnitKind::up_3d) return units;
    }
  }
  return units;
}

}  // namespace

NeededMemory needed_memory(const ProgramSet& set, const MemoryPlan& plan,
                           const MachineProfile& profile,
                           const std::vector<ProcessLine>& other_lines) {
  NeededMemory m;
  m.lines = process_lines(set, {.blas_bytes_per_thread = Bytes{ops::kBlasBufferTouched}});
  const bool gpu = set.backend.device == Device::cuda;
  if (gpu) add_gpu_lines(m.lines, profile, plan.peak_of(Tier::host));
  m.lines.insert(m.lines.end(), other_lines.begin(), other_lines.end());
  m.device = plan.peak_of(Tier::device);
  m.host = plan.peak_of(Tier::host);
  for (const ProcessLine& l : m.lines) {
    if (l.tier != Tier::disk) (l.tier == Tier::device ? m.device : m.host) += l.bytes;
  }
  // Without a GPU the device arena is host memory.
  if (!gpu) m.host += plan.peak_of(Tier::device);
  return m;
}

std::vector<Shortage> shortages(const MemoryPlan& plan, Bytes device, Bytes host,
                                const Budget& budget) {
  const auto allowed = [](Bytes needed, Bytes most) { return fits(needed, most) ? needed : most; };
  return ballast::shortages(plan, {device, host, Bytes{}},
                            {allowed(device, budget.gpu), allowed(host, budget.host), Bytes{}});
}

std::string policy_text(const Policy& p) {
  std::string text;
  const auto add = [&](bool yes, const std::string& what) {
    if (yes) text += (text.empty() ? "" : ", ") + what;
  };
  add(p.slices, "frames one by one");
  add(p.streamed_units > 0, "weights from the host");
  add(p.hosted_histories > 0, fmt::format("{} histories on the host", p.hosted_histories));
  return text.empty() ? "resident" : text;
}

std::variant<PlannedVae, Refusal> fit(const FitRequest& request) {
  const auto fitting = [&](const PlannedVae& p) {
    return fits(p.device, request.budget.gpu) && fits(p.host, request.budget.host);
  };
  if (request.policy) {
    PlannedVae p = plan_with(request, *request.policy);
    if (fitting(p)) return p;
    return refusal_of(request, p);
  }
  // One frame after the other costs next to nothing, what comes from the host its transfers.
  Policy policy;
  PlannedVae plain = plan_with(request, policy);
  if (fitting(plain)) return plain;
  policy.slices = request.job.decode && request.job.long_clips;
  std::optional<PlannedVae> best;
  PlannedVae leanest = std::move(plain);
  const int histories = !request.job.long_clips ? 0
                        : request.job.encode    ? FrameCaches::kEncoder
                                                : FrameCaches::kDecoder;
  for (const std::size_t streamed :
       {std::size_t{}, units_before_slices(request.job), ~std::size_t{}}) {
    policy.streamed_units = streamed;
    // Every further one frees memory: the fewest that are enough.
    int least = 0, most = histories;
    while (least <= most) {
      policy.hosted_histories = (least + most) / 2;
      PlannedVae p = plan_with(request, policy);
      const bool enough = fitting(p);
      if (p.device < leanest.device) leanest = p;
      if (enough && (!best || p.seconds < best->seconds)) best = std::move(p);
      (enough ? most : least) = policy.hosted_histories + (enough ? -1 : 1);
    }
  }
  if (best) return std::move(*best);
  return refusal_of(request, leanest);
}

}  // namespace ballast::wan_vae
