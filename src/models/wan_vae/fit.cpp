#include "models/wan_vae/fit.h"

#include <fmt/format.h>

#include <optional>

#include "core/error.h"
#include "ops/sgemm.h"
#include "plan/predict.h"

namespace ballast::wan_vae {
namespace {

// Of more the halos would be most of the work.
constexpr std::int64_t kMostBands = 8;

std::vector<Band> bands_of(const Job& job, std::int64_t count) {
  const std::int64_t halo = job.decode ? kDecoderHalo : kEncoderHalo;
  return cut_bands(kGridPerLatent * job.height, count, halo);
}

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
  p.twice = computed_twice(bands_of(job, policy.bands));
  return p;
}

bool fits(Bytes needed, Bytes allowed) { return allowed.count == 0 || needed <= allowed; }

Refusal refusal_of(const FitRequest& r, const PlannedVae& p) {
  return {.policy = policy_text(p),
          .needed = {p.device, p.host, Bytes{}},
          .shortages = shortages(p.plan, p.device, p.host, r.budget),
          .seconds_per_step = 0};
}

// Those of a decoder that are used once for a chunk: before frames go one by one, or in bands.
std::size_t units_used_once(const Job& job, bool bands) {
  if (!job.decode) return ~std::size_t{};
  std::size_t units = 0, used_once = 0;
  for (const Stage& s : decoder(job.config)) {
    for (const Unit& u : s.units) {
      ++units;
      if (u.kind == UnitKind::up_3d && (bands || used_once == 0)) used_once = units;
    }
  }
  return used_once;
}

// Looks for the fastest that fits, and remembers the leanest.
class Search {
 public:
  explicit Search(const FitRequest& request) : request_(request) {}

  bool fitting(const PlannedVae& p) const {
    return fits(p.device, request_.budget.gpu) && fits(p.host, request_.budget.host);
  }
  PlannedVae plan(const Policy& policy) {
    PlannedVae p = plan_with(request_, policy);
    if (!leanest_ || scarce(p) < scarce(*leanest_)) leanest_ = p;
    return p;
  }
  // What of these bands comes from the host: its transfers cost least where there are few.
  std::optional<PlannedVae> fastest(std::int64_t bands);
  // Seconds that they take where nothing comes from there; without a profile 0.
  double soonest(std::int64_t bands) { return plan(policy_of(bands)).seconds; }
  const PlannedVae& leanest() const { return *leanest_; }

 private:
  Policy policy_of(std::int64_t bands) const {
    return {.slices = request_.job.decode && request_.job.long_clips, .bands = bands};
  }

  // Without a GPU what waits elsewhere waits in the same memory.
  bool apart() const {
    return request_.backend.device == Device::cuda || request_.budget.gpu.count > 0;
  }
  Bytes scarce(const PlannedVae& p) const { return apart() ? p.device : p.host; }

  const FitRequest& request_;
  std::optional<PlannedVae> leanest_;
};

std::optional<PlannedVae> Search::fastest(std::int64_t bands) {
  const Job& job = request_.job;
  Policy policy = policy_of(bands);
  std::optional<PlannedVae> best;
  const int histories = !job.long_clips ? 0
                        : job.encode    ? FrameCaches::kEncoder
                                        : FrameCaches::kDecoder;
  policy.streamed_units = ~std::size_t{};
  policy.hosted_histories = histories;
  if (!fits(plan(policy).device, request_.budget.gpu)) return std::nullopt;
  for (const std::size_t streamed :
       {std::size_t{}, units_used_once(job, bands > 1), ~std::size_t{}}) {
    policy.streamed_units = streamed;
    // Every further one frees memory of the device: the fewest that are enough.
    int least = 0, most = apart() ? histories : 0;
    while (least <= most) {
      policy.hosted_histories = (least + most) / 2;
      PlannedVae p = plan(policy);
      const bool enough = fitting(p);
      if (enough && (!best || p.seconds < best->seconds)) best = std::move(p);
      (enough ? most : least) = policy.hosted_histories + (enough ? -1 : 1);
    }
  }
  return best;
}

}  // namespace

std::vector<Policy> decoding_policies(const Job& job) {
  Job decoding = job;
  decoding.decode = true;
  Policy p;
  std::vector<Policy> all = {p};
  p.slices = job.long_clips;
  if (p.slices) all.push_back(p);
  p.streamed_units = units_used_once(decoding, false);
  all.push_back(p);
  p.streamed_units = ~std::size_t{};
  if (job.long_clips) p.hosted_histories = FrameCaches::kDecoder;
  all.push_back(p);
  return all;
}

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

std::string policy_text(const PlannedVae& planned) {
  const Policy& p = planned.policy;
  std::string text;
  const auto add = [&](bool yes, const std::string& what) {
    if (yes) text += (text.empty() ? "" : ", ") + what;
  };
  add(p.slices, "frames one by one");
  add(planned.twice > 0,
      fmt::format("{} bands ({:.0f} % computed twice)", p.bands, 100 * planned.twice));
  add(p.streamed_units > 0, "weights streamed from RAM");
  add(p.hosted_histories > 0, fmt::format("{} histories in RAM", p.hosted_histories));
  return text.empty() ? "resident" : text;
}

std::variant<PlannedVae, Refusal> fit(const FitRequest& request) {
  Search search(request);
  if (request.policy) {
    if (std::ssize(bands_of(request.job, request.policy->bands)) < request.policy->bands &&
        request.policy->bands > 1) {
      fail(ErrorCode::usage, fmt::format("{} rows of latents cannot be cut into {} bands",
                                         request.job.height, request.policy->bands));
    }
    PlannedVae p = search.plan(*request.policy);
    if (search.fitting(p)) return p;
    return refusal_of(request, p);
  }
  PlannedVae plain = search.plan({});
  if (search.fitting(plain)) return plain;
  // One frame after the other costs next to nothing, what comes from the host its transfers, and
  // bands what is computed twice.
  std::optional<PlannedVae> best;
  for (std::int64_t bands = 1; bands <= kMostBands; ++bands) {
    if (bands > 1 && std::ssize(bands_of(request.job, bands)) < bands) break;
    if (best && search.soonest(bands) >= best->seconds) break;
    auto found = search.fastest(bands);
    if (found && (!best || found->seconds < best->seconds)) best = std::move(found);
  }
  if (best) return std::move(*best);
  // The plan that a refusal would speak of: with a budget of what it needs it is the answer.
  if (search.fitting(search.leanest())) return search.leanest();
  return refusal_of(request, search.leanest());
}

}  // namespace ballast::wan_vae
