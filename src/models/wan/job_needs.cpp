#include "models/wan/job_needs.h"

#include <algorithm>
#include <array>

#include "ops/quantum.h"
#include "ops/sgemm.h"
#include "plan/places.h"

namespace ballast::wan {
namespace {

std::int64_t longest_sample(const DitJob& job) {
  std::int64_t tokens = 0;
  for (const Batch& b : job.batches) {
    for (const LatentSize& z : b.latents) tokens = std::max(tokens, z.tokens());
  }
  return tokens;
}

bool one_head_is_work_enough(const DitJob& job) { return longest_sample(job) >= 16384; }

std::int64_t chunk_of(const DitJob& job, std::int64_t least, std::int64_t pieces) {
  const std::int64_t rows = std::max(least, longest_sample(job) / pieces);
  const std::int64_t unit = row_unit(job);
  return (rows + unit - 1) / unit * unit;
}

}  // namespace

std::int64_t chunk_in(const DitJob& job, std::int64_t pieces) {
  return chunk_of(job, 2 * kTokenQuantum, pieces);
}
std::int64_t wide_chunk(const DitJob& job) { return chunk_in(job, 8); }
std::int64_t narrow_chunk(const DitJob& job) { return chunk_of(job, kTokenQuantum, 16); }

std::int64_t usual_heads(const DitJob& job) { return one_head_is_work_enough(job) ? 1 : 0; }
std::int64_t many_heads(const DitJob& job) { return one_head_is_work_enough(job) ? 8 : 0; }
std::int64_t few_heads(const DitJob& job) { return one_head_is_work_enough(job) ? 1 : 4; }

bool several_samples(const DitJob& job) {
  return job.noising != Noising::given &&
         std::ranges::any_of(job.batches, [](const Batch& b) { return b.latents.size() > 1; });
}

namespace {

constexpr std::int64_t kFewBlocks = 3;  // from here on one block more adds the same again

// Of the first kind of step, by lane.
std::array<double, kLaneCount> busy_seconds(const FitRequest& request,
                                            const RecordedJob& recorded) {
  std::array<double, kLaneCount> seconds{};
  const ProgramSet& set = recorded.set;
  std::vector<double> runs;  // of each program in one step
  for (const StepPart& part : recorded.parts[0]) {
    runs.resize(std::max(runs.size(), part.run + 1), 0);
    ++runs[part.run];
  }
  for (std::size_t r = 0; r < runs.size(); ++r) {
    if (runs[r] == 0) continue;
    const auto program = set.program_index(step_program(r));
    for (const Instruction& i : set.programs[static_cast<std::size_t>(program)].instructions) {
      seconds[static_cast<std::size_t>(i.lane)] +=
          runs[r] * predicted_seconds(set, i, request.profile);
    }
  }
  return seconds;
}

Bytes recorded_line(const std::vector<ProcessLine>& lines) {
  const auto line = std::ranges::find(lines, kRecordedPrograms, &ProcessLine::name);
  return line == lines.end() ? Bytes{} : line->bytes;
}

bool same_form(const WeightGroup& a, const WeightGroup& b) {
  if (a.keep_precision != b.keep_precision || a.tensors.size() != b.tensors.size()) return false;
  for (std::size_t t = 0; t < a.tensors.size(); ++t) {
    const StoredTensor &x = a.tensors[t], &y = b.tensors[t];
    if (x.data.dtype != y.data.dtype || x.data.shape != y.data.shape) return false;
    if (x.scale.has_value() != y.scale.has_value()) return false;
  }
  return true;
}

// Whether all blocks have the same tensors and adapters, and are more than a few.
bool have_one_form(const FitRequest& request) {
  const auto layers = request.job.config.layers;
  if (layers <= kFewBlocks + 1 || !request.job.lora.excluded.empty()) return false;
  for (const auto& groups : request.experts) {
    for (std::int64_t b = 1; b < layers; ++b) {
      if (!same_form(groups[static_cast<std::size_t>(block_group(0))],
                     groups[static_cast<std::size_t>(block_group(b))])) {
        return false;
      }
    }
  }
  return true;
}

FitRequest with_blocks(const FitRequest& request, std::int64_t layers) {
  FitRequest r = request;
  r.job.config.layers = layers;
  for (auto& groups : r.experts) {
    groups.erase(groups.begin() + block_group(layers), groups.end() - 1);
  }
  return r;
}

}  // namespace

RecordedJob record(const FitRequest& request, const MemoryPolicy& policy) {
  RecordedJob r;
  r.policy = policy;
  r.set.backend = request.backend;
  r.set.executable = false;
  // Room for most recordings: pages are taken as they are filled.
  constexpr std::int64_t kBuffersOfABlock = 6144;
  r.set.buffers.reserve(static_cast<std::size_t>(request.job.config.layers * kBuffersOfABlock));
  DitJob job = request.job;
  job.policy = policy;
  const Dit dit(r.set, std::move(job), request.experts);
  for (std::size_t b = 0; b < request.job.batches.size(); ++b) r.parts.push_back(dit.parts(b));
  if (request.teacher) Dit(r.set, dit_job(*request.teacher, dit), request.teacher->experts);
  if (!request.companion.ways.empty()) {
    request.companion.ways[request.companion.chosen()](r.set);
  }
  return r;
}

std::string step_program(std::size_t run) { return run_program("step", run); }

std::vector<ProcessLine> lines_for(const FitRequest& request, const ProgramSet& set, Bytes host) {
  std::vector<ProcessLine> lines =
      process_lines(set, {.blas_bytes_per_thread = Bytes{ops::kBlasBufferTouched}});
  if (request.backend.device == Device::cuda) add_gpu_lines(lines, request.profile, host);
  lines.insert(lines.end(), request.other_lines.begin(), request.other_lines.end());
  return lines;
}

LeastNeeds least_needs(const FitRequest& request, const RecordedJob& recorded) {
  const auto live = live_bytes(recorded.set);
  std::vector<ProcessLine> lines = lines_for(request, recorded.set, live[1]);
  std::erase_if(lines, [](const ProcessLine& l) { return l.name == kRecordings; });
  const auto busy = busy_seconds(request, recorded);
  const auto of = [&](Lane lane) { return busy[static_cast<std::size_t>(lane)]; };
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

double least_seconds(const LeastNeeds& needs, const MachineProfile& profile) {
  return std::max(needs.compute_seconds, needs.transfers.seconds(profile));
}

namespace {

LeastNeeds with_all_blocks(const FitRequest& request, const LeastNeeds& few,
                           const LeastNeeds& one_more) {
  const auto more = static_cast<std::uint64_t>(request.job.config.layers - kFewBlocks);
  const auto grown = [&](Bytes from, Bytes to) { return from + (to - from) * more; };
  const auto longer = [&](double from, double to) {
    return from + (to - from) * static_cast<double>(more);
  };
  const Transfers &t = few.transfers, &u = one_more.transfers;
  return {.device = grown(few.device, one_more.device),
          .host = grown(few.host, one_more.host),
          .disk = grown(few.disk, one_more.disk),
          .recorded = grown(few.recorded, one_more.recorded),
          .compute_seconds = longer(few.compute_seconds, one_more.compute_seconds),
          .transfers = {.link_seconds = longer(t.link_seconds, u.link_seconds),
                        .read_bytes = longer(t.read_bytes, u.read_bytes)},
          .of_a_block = {.link_seconds = u.link_seconds - t.link_seconds,
                         .read_bytes = u.read_bytes - t.read_bytes}};
}

}  // namespace

LeastNeeds least_needs(const FitRequest& request, const MemoryPolicy& policy) {
  return KnownNeeds().of(request, policy);
}

KnownNeeds::Known& KnownNeeds::known(const MemoryPolicy& policy) {
  const auto found = std::ranges::find(known_, policy, &Known::policy);
  return found != known_.end() ? *found : known_.emplace_back(Known{policy, {}, {}, {}, {}, {}});
}

bool KnownNeeds::one_form(const FitRequest& request) {
  if (!one_form_) one_form_ = have_one_form(request);
  return *one_form_;
}

// Whether every block is recorded as the others are.
bool KnownNeeds::alike(const FitRequest& request, const MemoryPolicy& policy) {
  const int on_disk = policy.disk_state_groups;
  return policy.resident_groups == 0 && policy.kept_blocks == 0 &&
         (on_disk == 0 || on_disk >= group_count(request.job.config)) && one_form(request);
}

const LeastNeeds& KnownNeeds::one(const FitRequest& request, Known& k) {
  if (!one_) one_ = with_blocks(request, 1);
  if (!k.one) k.one = least_needs(*one_, record(*one_, k.policy));
  return *k.one;
}

const LeastNeeds& KnownNeeds::few(const FitRequest& request, Known& k) {
  if (!few_) few_ = with_blocks(request, kFewBlocks);
  if (!k.few) k.few = least_needs(*few_, record(*few_, k.policy));
  return *k.few;
}

const LeastNeeds& KnownNeeds::one_more(const FitRequest& request, Known& k) {
  if (!one_more_) one_more_ = with_blocks(request, kFewBlocks + 1);
  if (!k.one_more) k.one_more = least_needs(*one_more_, record(*one_more_, k.policy));
  return *k.one_more;
}

LeastNeeds KnownNeeds::of(const FitRequest& request, const MemoryPolicy& policy) {
  Known& k = known(policy);
  if (!k.all) {
    k.all = alike(request, policy) ? with_all_blocks(request, few(request, k), one_more(request, k))
                                   : least_needs(request, record(request, policy));
  }
  return *k.all;
}

LeastNeeds KnownNeeds::of_few_blocks(const FitRequest& request, const MemoryPolicy& policy) {
  return one_form(request) ? one_more(request, known(policy)) : of(request, policy);
}

Bytes KnownNeeds::unused_by_places(const FitRequest& request, const MemoryPolicy& policy) {
  if (!one_form(request)) return {};
  Known& k = known(policy);
  if (!k.unused) {
    one_more(request, k);  // makes the request
    const ProgramSet set = record(*one_more_, policy).set;
    k.unused = plan_places(set).peak_of(Tier::device) - live_bytes(set)[0];
  }
  return *k.unused;
}

const KnownNeeds::Staying& KnownNeeds::staying(const FitRequest& request,
                                               const MemoryPolicy& lean) {
  const auto found = std::ranges::find_if(staying_, [&](const Staying& s) {
    return s.slots == lean.slots && s.parts == lean.parts && s.home == lean.home;
  });
  if (found != staying_.end()) return *found;
  std::array<LeastNeeds, 3> with;  // so many groups: none, the head, the head and a block
  for (int groups = 0; groups < 3; ++groups) {
    MemoryPolicy p = lean;
    p.resident_groups = groups;
    with[static_cast<std::size_t>(groups)] = of_few_blocks(request, p);
  }
  const auto more = [](Bytes a, Bytes b) {
    return static_cast<std::int64_t>(b.count) - static_cast<std::int64_t>(a.count);
  };
  // A recording of groups that stay is shorter: of the host's bytes those that hold no recording.
  const auto host = [](const LeastNeeds& n) { return n.host - n.recorded; };
  return staying_.emplace_back(Staying{.slots = lean.slots,
                                       .parts = lean.parts,
                                       .home = lean.home,
                                       .head_device = more(with[0].device, with[1].device),
                                       .head_host = more(host(with[0]), host(with[1])),
                                       .block_device = more(with[1].device, with[2].device),
                                       .block_host = more(host(with[1]), host(with[2]))});
}

std::optional<LeastNeeds> KnownNeeds::of_staying(const FitRequest& request,
                                                 const MemoryPolicy& policy, bool quickly) {
  const std::int64_t blocks = policy.resident_groups - 1;
  if (request.job.mode == Mode::full || policy.slots == 0 || policy.kept_blocks > 0 || blocks < 0 ||
      blocks >= request.job.config.layers || !one_form(request)) {
    return std::nullopt;
  }
  MemoryPolicy lean = policy;
  lean.resident_groups = 0;
  const LeastNeeds none = quickly ? few(request, known(lean)) : of(request, lean);
  const Staying& s = staying(request, lean);
  // Where matrices come one by one, those of the block whose work needs most may be there anyway.
  const std::int64_t there = policy.parts > 0 ? std::max<std::int64_t>(0, s.block_device) : 0;
  const auto plus = [](Bytes from, std::int64_t more) {
    const std::int64_t sum = static_cast<std::int64_t>(from.count) + more;
    return Bytes{static_cast<std::uint64_t>(std::max<std::int64_t>(0, sum))};
  };
  LeastNeeds least;
  least.device = plus(none.device, s.head_device + blocks * s.block_device - there);
  least.host = plus(none.host - none.recorded, s.head_host + blocks * s.block_host);
  least.recorded = none.recorded;  // no less, this once
  return least;
}

bool host_may_shrink(const FitRequest& request, const MemoryPolicy& policy) {
  return request.job.mode == Mode::full && policy.slots > 0 && !request.streamed_blocks;
}

LeastNeeds kept_at_least(const DitJob& job, const MemoryPolicy& policy) {
  LeastNeeds least;
  if (job.mode == Mode::infer || !job.lora.excluded.empty()) return least;
  std::int64_t tokens = 0;  // of a run
  for (const Batch& b : job.batches) {
    std::int64_t sum = 0, longest = 0;
    for (const LatentSize& z : b.latents) {
      sum += z.tokens();
      longest = std::max(longest, z.tokens());
    }
    tokens = std::max(tokens, policy.samples_per_run == 0 ? sum : longest);
  }
  std::size_t element = size_of(job.precision.residual);
  if (policy.activations != Activations::recomputed) element += size_of(job.precision.activation);
  const std::int64_t elements = job.config.layers * tokens * job.config.dim;
  (policy.offload ? least.host : least.device) = {static_cast<std::uint64_t>(elements) * element};
  return least;
}

bool KnownNeeds::surely_over(const FitRequest& request, const MemoryPolicy& policy) {
  const auto over = [&](const LeastNeeds& n) {
    return host_may_shrink(request, policy) ? n.device > request.budget.gpu
                                            : excess(request, n).count > 0;
  };
  if (over(kept_at_least(request.job, policy))) return true;
  Known& k = known(policy);
  if (!k.all && !alike(request, policy)) {
    for (const bool quickly : {true, false}) {
      const auto least = of_staying(request, policy, quickly);
      if (least && over(*least)) return true;
    }
    return over(of(request, policy));
  }
  if (k.all) return over(*k.all);
  last_over_ = (last_over_ && !k.few && over(one(request, k))) || over(few(request, k));
  return last_over_;
}

std::vector<Bytes> least_group_bytes(const FitRequest& request, bool state_on_disk) {
  const DitJob& job = request.job;
  const bool as_stored = job.format == WeightFormat::stored;
  const auto states = [&](const Shape& shape, DType dtype) {
    std::uint64_t bytes = 0;
    for (const StateSpec& s : state_specs(job.optimizer, shape, dtype)) {
      bytes += static_cast<std::uint64_t>(s.shape.elements()) * size_of(s.dtype);
    }
    return bytes;
  };
  std::vector<Bytes> all;
  for (const WeightGroup& g : request.experts.front()) {
    std::uint64_t sum = 0;
    for (const StoredTensor& t : g.tensors) {
      const Shape& shape = t.data.shape;
      const auto elements = static_cast<std::uint64_t>(shape.elements());
      sum += elements * (as_stored ? size_of(t.data.dtype) : 1);
      if (job.mode != Mode::full) continue;
      sum += elements * size_of(DType::f32);  // the gradient
      if (state_on_disk || !job.record_update) continue;
      sum += std::min(states(shape, DType::f32), states(shape, DType::bf16));
    }
    all.push_back({sum});
  }
  return all;
}

Bytes excess(const FitRequest& request, const LeastNeeds& n) {
  const auto over = [](Bytes needed, Bytes allowed) {
    return needed > allowed ? needed - allowed : Bytes{};
  };
  const bool shared = request.backend.device == Device::cpu;
  return over(n.device, request.budget.gpu) +
         over(shared ? n.device + n.host : n.host, request.budget.host) +
         over(n.disk, request.budget.disk);
}

}  // namespace ballast::wan
