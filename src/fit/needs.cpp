#include "fit/needs.h"

#include <algorithm>
#include <array>

#include "core/to_size.h"
#include "fit/tuning.h"
#include "ops/linear/sgemm.h"
#include "plan/already_held.h"
#include "plan/offsets.h"

namespace ballast::fit {
namespace {

// Of the programs that compute a step of the first kind, by lane. Those that come after it (norms,
// updates) have none of what policies trade.
std::array<double, kLaneCount> busy_seconds(const Request& request, const Recording& recorded) {
  std::array<double, kLaneCount> seconds{};
  if (request.profile.gemm_flops <= 0) return seconds;
  const ProgramSet& set = recorded.set;
  for (const StepProgram& step : recorded.steps[0]) {
    if (!step.computes || step.runs == 0) continue;
    const auto program = to_size(set.program_index(step.name));
    for (const Instruction& i : set.programs[program].instructions) {
      seconds[to_size(i.lane)] += step.runs * predicted_seconds(set, i, request.profile);
    }
  }
  return seconds;
}

// Of each layer that the job counts.
std::int64_t blocks_per_layer(const Request& request) {
  const std::int64_t depth = request.job->depth();
  return depth == 0 ? 1 : request.job->blocks() / depth;
}

Bytes recorded_line(const std::vector<ProcessLine>& lines) {
  const auto line = std::ranges::find(lines, kRecordedPrograms, &ProcessLine::name);
  return line == lines.end() ? Bytes{} : line->bytes;
}

Request with_layers(const Request& request, std::int64_t layers) {
  Request r = request;
  r.job = request.job->with_depth(layers);
  return r;
}

}  // namespace

Recording record(const Request& request, const MemoryPolicy& policy) {
  return request.job->record(policy, request.backend);
}

std::vector<ProcessLine> lines_for(const Request& request, const ProgramSet& set, Bytes host) {
  std::vector<ProcessLine> lines =
      process_lines(set, {.blas_bytes_per_thread = Bytes{ops::kBlasBufferTouched}});
  if (request.backend.device == Device::cuda) add_gpu_lines(lines, request.profile, host);
  lines.insert(lines.end(), request.other_lines.begin(), request.other_lines.end());
  if (const Bytes held = already_held(); held.count > 0) {
    lines.push_back({"already in this process", held, "what it held before Ballast was called"});
  }
  return lines;
}

NeedsLowerBound needs_lower_bound(const Request& request, const Recording& recorded) {
  const auto live = live_bytes(recorded.set);
  std::vector<ProcessLine> lines = lines_for(request, recorded.set, live[1]);
  std::erase_if(lines, [](const ProcessLine& l) { return l.name == kRecordings; });
  const auto busy = busy_seconds(request, recorded);
  const auto of = [&](Lane lane) { return busy[to_size(lane)]; };
  return {.device = live[0] + sum_lines(lines, Tier::device),
          .host = live[1] + sum_lines(lines, Tier::host),
          .disk = live[2] + sum_lines(lines, Tier::disk),
          .recorded = recorded_line(lines),
          .compute_seconds = of(Lane::compute),
          .transfers = {.link_seconds = std::max(of(Lane::upload), of(Lane::download)),
                        .read_bytes = of(Lane::disk) * request.profile.disk_bandwidth},
          .of_a_block = {}};
}

double Transfers::seconds(const MachineProfile& profile) const {
  const double reads = read_bytes > 0 ? read_bytes / profile.disk_bandwidth : 0;
  return std::max(link_seconds, reads);
}

double seconds_lower_bound(const NeedsLowerBound& needs, const MachineProfile& profile) {
  return std::max(needs.compute_seconds, needs.transfers.seconds(profile));
}

namespace {

NeedsLowerBound with_all_blocks(const Request& request, const NeedsLowerBound& few,
                                const NeedsLowerBound& one_more) {
  const auto more = static_cast<std::uint64_t>(request.job->depth() - tuning::kMinRecordedLayers);
  const auto grown = [&](Bytes from, Bytes to) { return from + (to - from) * more; };
  const auto longer = [&](double from, double to) {
    return from + (to - from) * static_cast<double>(more);
  };
  const Transfers &t = few.transfers, &u = one_more.transfers;
  const double share = 1.0 / static_cast<double>(blocks_per_layer(request));
  return {.device = grown(few.device, one_more.device),
          .host = grown(few.host, one_more.host),
          .disk = grown(few.disk, one_more.disk),
          .recorded = grown(few.recorded, one_more.recorded),
          .compute_seconds = longer(few.compute_seconds, one_more.compute_seconds),
          .transfers = {.link_seconds = longer(t.link_seconds, u.link_seconds),
                        .read_bytes = longer(t.read_bytes, u.read_bytes)},
          .of_a_block = {.link_seconds = share * (u.link_seconds - t.link_seconds),
                         .read_bytes = share * (u.read_bytes - t.read_bytes)}};
}

}  // namespace

NeedsLowerBound needs_lower_bound(const Request& request, const MemoryPolicy& policy) {
  return NeedsCache().needs_for(request, policy);
}

NeedsCache::CachedNeeds& NeedsCache::known(const MemoryPolicy& policy) {
  const auto found = std::ranges::find(known_, policy, &CachedNeeds::policy);
  return found != known_.end() ? *found
                               : known_.emplace_back(CachedNeeds{policy, {}, {}, {}, {}, {}});
}

bool NeedsCache::one_form(const Request& request) {
  if (!one_form_) {
    one_form_ = !request.job->recordings_are_short() &&
                request.job->depth() > tuning::kMinRecordedLayers + 1;
  }
  return *one_form_;
}

// Whether every block is recorded as the others are.
bool NeedsCache::alike(const Request& request, const MemoryPolicy& policy) {
  const int on_disk = policy.disk_state_groups;
  return policy.stream().resident_groups == 0 && policy.kept_blocks == 0 &&
         (on_disk == 0 || on_disk >= request.job->group_count()) && one_form(request);
}

const NeedsLowerBound& NeedsCache::one(const Request& request, CachedNeeds& k) {
  if (!one_) one_ = with_layers(request, 1);
  if (!k.one) k.one = needs_lower_bound(*one_, record(*one_, k.policy));
  return *k.one;
}

const NeedsLowerBound& NeedsCache::few(const Request& request, CachedNeeds& k) {
  if (!few_) few_ = with_layers(request, tuning::kMinRecordedLayers);
  if (!k.few) k.few = needs_lower_bound(*few_, record(*few_, k.policy));
  return *k.few;
}

const NeedsLowerBound& NeedsCache::one_more(const Request& request, CachedNeeds& k) {
  if (!one_more_) one_more_ = with_layers(request, tuning::kMinRecordedLayers + 1);
  if (!k.one_more) k.one_more = needs_lower_bound(*one_more_, record(*one_more_, k.policy));
  return *k.one_more;
}

NeedsLowerBound NeedsCache::needs_for(const Request& request, const MemoryPolicy& policy) {
  CachedNeeds& k = known(policy);
  if (!k.all) {
    if (alike(request, policy)) {
      k.all = with_all_blocks(request, few(request, k), one_more(request, k));
    } else {
      last_ = record(request, policy);
      k.all = needs_lower_bound(request, *last_);
    }
  }
  return *k.all;
}

Recording NeedsCache::recording(const Request& request, const MemoryPolicy& policy) {
  if (!last_ || last_->policy != policy) return record(request, policy);
  Recording r = std::move(*last_);
  last_.reset();
  return r;
}

NeedsLowerBound NeedsCache::needs_of_few_blocks(const Request& request,
                                                const MemoryPolicy& policy) {
  return one_form(request) ? one_more(request, known(policy)) : needs_for(request, policy);
}

Bytes NeedsCache::packing_loss(const Request& request, const MemoryPolicy& policy) {
  if (!one_form(request)) return {};
  CachedNeeds& k = known(policy);
  if (!k.unused) {
    one_more(request, k);  // makes the request
    const ProgramSet set = record(*one_more_, policy).set;
    k.unused = plan_offsets(set).peak_of(Tier::device) - live_bytes(set)[0];
  }
  return *k.unused;
}

const NeedsCache::ResidentNeeds& NeedsCache::resident_needs(const Request& request,
                                                            const MemoryPolicy& lean) {
  const bool in_host = request.job->stays_in_host_memory(lean);
  const Streaming own = lean.stream();
  const Streaming stream = {
      .slots = own.slots, .matrices_ahead = own.matrices_ahead, .stream_from = own.stream_from};
  const auto found = std::ranges::find_if(resident_needs_, [&](const ResidentNeeds& s) {
    return s.stream == stream && s.in_host == in_host;
  });
  if (found != resident_needs_.end()) return *found;
  std::array<NeedsLowerBound, 3> with;  // so many groups: none, the head, the head and a block
  for (int groups = 0; groups < 3; ++groups) {
    MemoryPolicy p = lean;
    p.keep_groups(groups);
    with[to_size(groups)] = needs_of_few_blocks(request, p);
  }
  const auto more = [](Bytes a, Bytes b) {
    return static_cast<std::int64_t>(b.count) - static_cast<std::int64_t>(a.count);
  };
  // A recording of groups that stay is shorter: of the host's bytes those that hold no recording.
  const auto host = [](const NeedsLowerBound& n) { return n.host - n.recorded; };
  return resident_needs_.emplace_back(
      ResidentNeeds{.stream = stream,
                    .in_host = in_host,
                    .head_device = more(with[0].device, with[1].device),
                    .head_host = more(host(with[0]), host(with[1])),
                    .block_device = more(with[1].device, with[2].device),
                    .block_host = more(host(with[1]), host(with[2]))});
}

std::optional<NeedsLowerBound> NeedsCache::needs_resident(const Request& request,
                                                          const MemoryPolicy& policy,
                                                          bool quickly) {
  const std::int64_t blocks = policy.stream().resident_groups - 1;
  if (request.job->trained() == Trained::weights || !policy.streams() || policy.kept_blocks > 0 ||
      blocks < 0 || blocks >= request.job->blocks() || !one_form(request) ||
      blocks_per_layer(request) != 1) {
    return std::nullopt;
  }
  MemoryPolicy lean = policy;
  lean.keep_groups(0);
  const NeedsLowerBound none = quickly ? few(request, known(lean)) : needs_for(request, lean);
  const ResidentNeeds& s = resident_needs(request, lean);
  // Where matrices come one by one, those of the block whose work needs most may be there anyway.
  const std::int64_t there =
      policy.streaming->matrices_ahead > 0 ? std::max<std::int64_t>(0, s.block_device) : 0;
  const auto plus = [](Bytes from, std::int64_t more) {
    const std::int64_t sum = static_cast<std::int64_t>(from.count) + more;
    return Bytes{static_cast<std::uint64_t>(std::max<std::int64_t>(0, sum))};
  };
  NeedsLowerBound least;
  least.device = plus(none.device, s.head_device + blocks * s.block_device - there);
  least.host = plus(none.host - none.recorded, s.head_host + blocks * s.block_host);
  least.recorded = none.recorded;  // no less, this once
  return least;
}

bool host_may_shrink(const Request& request, const MemoryPolicy& policy) {
  return request.job->trained() == Trained::weights && policy.streams() && !request.streamed_blocks;
}

NeedsLowerBound min_kept_bytes(const Request& request, const MemoryPolicy& policy) {
  NeedsLowerBound least;
  (policy.offload ? least.host : least.device) = request.job->min_kept_bytes(policy);
  return least;
}

bool NeedsCache::exceeds_bound(const Request& request, const MemoryPolicy& policy) {
  const auto over = [&](const NeedsLowerBound& n) {
    return host_may_shrink(request, policy) ? n.device > request.budget.gpu
                                            : excess(request, n).count > 0;
  };
  if (over(min_kept_bytes(request, policy))) return true;
  CachedNeeds& k = known(policy);
  if (!k.all && !alike(request, policy)) {
    for (const bool quickly : {true, false}) {
      const auto least = needs_resident(request, policy, quickly);
      if (least && over(*least)) return true;
    }
    return over(needs_for(request, policy));
  }
  if (k.all) return over(*k.all);
  last_over_ = (last_over_ && !k.few && over(one(request, k))) || over(few(request, k));
  return last_over_;
}

std::vector<Bytes> min_group_bytes(const Request& request, bool state_on_disk) {
  const Job& job = *request.job;
  const bool as_stored = job.format() == WeightFormat::stored;
  const auto states = [&](const Shape& shape, DType dtype) {
    std::uint64_t bytes = 0;
    for (const StateSpec& s : state_specs(job.optimizer(), shape, dtype)) {
      bytes += static_cast<std::uint64_t>(s.shape.elements()) * size_of(s.dtype);
    }
    return bytes;
  };
  std::vector<Bytes> all;
  for (const WeightGroup& g : job.groups()) {
    std::uint64_t sum = 0;
    for (const StoredTensor& t : g.tensors) {
      const Shape& shape = t.data.shape;
      const auto elements = static_cast<std::uint64_t>(shape.elements());
      sum += elements * (as_stored ? size_of(t.data.dtype) : 1);
      if (job.trained() != Trained::weights) continue;
      sum += elements * job.gradient_bytes();
      if (state_on_disk || !job.records_update()) continue;
      sum += std::min(states(shape, DType::f32), states(shape, DType::bf16));
    }
    all.push_back({sum});
  }
  return all;
}

Bytes excess(const Request& request, const NeedsLowerBound& n) {
  const auto over = [](Bytes needed, Bytes allowed) {
    return needed > allowed ? needed - allowed : Bytes{};
  };
  const bool shared = request.backend.device == Device::cpu;
  return over(n.device, request.budget.gpu) +
         over(shared ? n.device + n.host : n.host, request.budget.host) +
         over(n.disk, request.budget.disk);
}

}  // namespace ballast::fit
