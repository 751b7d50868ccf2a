#include "fit/host_fill.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/to_size.h"
#include "fit/bounds.h"
#include "fit/fill.h"
#include "fit/search.h"
#include "fit/tuning.h"
#include "nn/block_weights.h"
#include "nn/staging_ring.h"

namespace ballast::fit {
namespace {

// For how much of its time a program that is run again and again computes nothing.
double waiting_share(const PlannedRun& run) {
  double most = 0;
  for (std::size_t p = 0; p < run.times.size(); ++p) {
    const PredictedTime& time = run.times[p];
    if (time.seconds <= 0 || run.set.programs[p].name.starts_with("load")) continue;
    most = std::max(most, time.exposed_stall / time.seconds);
  }
  return most;
}

// The groups that do not stay, by what they take in host memory.
class Streamed {
 public:
  Streamed(const Request& request, const MemoryPolicy& policy) {
    const std::span<const WeightGroup> groups = request.job->groups();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto i = static_cast<std::int64_t>(g);
      if (evenly_chosen(i, std::ssize(groups), policy.stream().resident_groups)) continue;
      bytes_.push_back(BlockWeights::streamed_bytes(groups[g], request.job->format()));
    }
  }
  int count() const { return static_cast<int>(bytes_.size()); }
  Bytes of(int n) const {  // evenly spaced ones
    Bytes sum;
    for (int i = 0; i < count(); ++i) {
      if (evenly_chosen(i, count(), n)) sum += bytes_[to_size(i)];
    }
    return sum;
  }
  int in(Bytes room) const {
    int n = count();
    while (n > 0 && of(n) > room) --n;
    return n;
  }

 private:
  std::vector<Bytes> bytes_;
};

// While a step computes with what stands in its slots, the disk has nowhere to read to but the
// ring, which takes what no block has room in.
int extra_ring_buffers(Bytes left) {
  const Bytes sure = left - std::min(left, tuning::kRingUnknown);
  return static_cast<int>(
      std::min<std::uint64_t>(tuning::kMaxBuffers, sure.count / StagingRing::kStreaming.buffer));
}

// What a step takes where a larger ring leaves nothing but its busiest lane; no less.
double lower_bound_with_ring(const PlannedRun& run) {
  const PredictedTime& step = run.main_program();
  const double reads = step.busy[to_size(Lane::disk)];
  const double busiest = std::max(reads / tuning::kIntoALargeRing, std::ranges::max(step.busy));
  return run.seconds_per_step() - step.seconds + busiest;
}

// To the device.
bool streams_from_disk(const Request& r, const MemoryPolicy& p) {
  return p.streams() && p.streaming->stream_from == StreamSource::disk &&
         !r.job->stays_in_host_memory(p);
}

// A plan whose streamed groups all come from disk.
struct Start {
  MemoryPolicy policy;
  Bytes host;  // that it needs
};

// The fastest of the plans that it fills, which begin with one that fits.
class HostFill {
 public:
  HostFill(const Request& request, PlannedRun lean, NeedsCache& known)
      : request_(request), known_(known), waiting_(waiting_share(lean)), best_(std::move(lean)) {}

  // Of a plan whose streamed weights all wait in host memory: what blocks keep may wait there in
  // the place of a few of them, and leave the device to larger pieces of work.
  PlannedRun with_activations_in_host() {
    waiting_ = 1;  // from disk
    MemoryPolicy p = best_.policy;
    p.offload = true;
    p.streaming->slots = 2;
    for (const std::int64_t chunk : request_.job->larger_chunks()) {
      p.chunk_tokens = chunk;
      if (fill_neighbour(p)) break;
    }
    return std::move(best_);
  }

  PlannedRun run() {
    record_for_ring(best_, 1);
    const Start first = start_at(best_);
    fill(first);
    // A plan found so may stream more groups than was thought of, and have more to read: then one
    // more is looked for, with what it showed.
    if (const auto second = start_with_less_to_read(first)) {
      fill(*second);
      if (share_in_host(*second) < tuning::kClearlyFewer * share_in_host(first)) {
        const auto third = start_with_less_to_read(*second);
        if (third && third->policy != first.policy) fill(*third);
      }
    }
    // The search knew nothing of what is computed again in order to hold more.
    if (best_.policy.split_backward && many_in_host(best_.policy)) {
      MemoryPolicy whole = best_.policy;
      whole.split_backward = false;
      fill_neighbour(whole);
    }
    add_ring();
    return std::move(best_);
  }

 private:
  // The best plan with another choice, filled anew; false: it does not fit or is no faster, which
  // is known before anything is recorded whole.
  bool fill_neighbour(MemoryPolicy policy) {
    Streaming& streaming = *policy.streaming;
    streaming.stream_from = StreamSource::disk;
    streaming.host_groups = streaming.extra_ring_buffers = 0;
    if (!request_.streamed_blocks) streaming.resident_groups = 0;
    Request search = heaviest(request_);
    const Bytes map = map_of_pinned(request_.budget.host);
    search.budget.gpu -= std::min(map, search.budget.gpu);
    if (known_.exceeds_bound(search, policy)) return false;
    const NeedsLowerBound needs = known_.needs_for(search, policy);
    if (excess(search, needs).count > 0) return false;
    if (needs.compute_seconds >= tuning::kWorthLookingFor * best_.seconds_per_step()) return false;
    const auto run = fill_with_groups(search, policy, known_, std::numeric_limits<double>::max());
    if (run) fill(start_at(*run));
    return run.has_value();
  }

  Start start_at(const PlannedRun& run) const {
    const bool shared = request_.backend.device == Device::cpu;
    return {run.policy, run.needed(Tier::host) + (shared ? run.needed(Tier::device) : Bytes{})};
  }
  Bytes room_beside(const Start& s) const {
    return request_.budget.host - std::min(s.host, request_.budget.host);
  }

  // Whether a step that waits for the disk gains by n groups that come from host memory instead.
  bool worthwhile(const Streamed& all, int n) const {
    return n > 0 && static_cast<double>(n) / all.count() * waiting_ >= tuning::kGainOfHostGroups;
  }

  // What blocks keep until their backward pass waits in host memory as well: attention that is
  // computed again leaves its place to weights. That it takes longer is surer than what it gains.
  void fill(const Start& start) {
    const Streamed all(request_, start.policy);
    MemoryPolicy again = start.policy;
    again.activations = Activations::recomputed;
    const Bytes kept = min_kept_bytes(request_, start.policy).host;
    const Bytes more = kept - std::min(kept, min_kept_bytes(request_, again).host);
    const Bytes room = room_beside(start);
    const int n = all.in(room), with_more = all.in(room + more);
    if (worthwhile(all, n)) consider(with_host_groups(start.policy, all, n), 1);
    if (worthwhile(all, with_more - n)) {
      consider(with_host_groups(again, all, with_more), tuning::kGainOfRecomputing);
    }
  }

  void consider(std::optional<PlannedRun> run, double share) {
    if (!run) return;
    record_for_ring(*run, share);
    take_if_faster(std::move(*run), share);
  }

  // No more than the best plan's time; one that computes attention again as well has nothing to
  // prove.
  double must_beat(const MemoryPolicy& policy, double share) const {
    const bool alike = policy.activations == best_.policy.activations;
    return (alike ? 1 : share) * best_.seconds_per_step();
  }

  void take_if_faster(PlannedRun run, double share) {
    if (run.seconds_per_step() < must_beat(run.policy, share)) best_ = std::move(run);
  }

  void record_for_ring(const PlannedRun& run, double share) {
    may_have_ring_.push_back(
        {run.policy, room_beside(start_at(run)), lower_bound_with_ring(run), share});
  }

  // A ring in what is left, or in the place of one group more.
  void add_ring() {
    std::ranges::sort(may_have_ring_, {}, &Filled::lower_bound_seconds);
    for (const Filled& f : may_have_ring_) {
      const Streamed all(request_, f.policy);
      const int groups = f.policy.streaming->host_groups;
      if (groups + 1 >= all.count()) continue;  // no more than the head comes from disk
      for (int n = groups; n >= std::max(0, groups - 1); --n) {
        if (tuning::kRingHelps * f.lower_bound_seconds >= must_beat(f.policy, f.share)) break;
        MemoryPolicy policy = f.policy;
        policy.streaming->host_groups = n;
        policy.streaming->extra_ring_buffers =
            extra_ring_buffers(f.room + all.of(groups) - all.of(n));
        if (policy.streaming->extra_ring_buffers == 0) continue;
        auto run = complete_if_fits(request_, record(request_, policy));
        if (run) take_if_faster(std::move(*run), f.share);
        if (policy.streaming->extra_ring_buffers == tuning::kMaxBuffers) break;
      }
    }
  }

  // n groups from host memory, or as many as the GPU has room for the map of, or one less where
  // recordings take more than was known, then half as many.
  std::optional<PlannedRun> with_host_groups(MemoryPolicy policy, const Streamed& all, int n) {
    for (const int most = n; n > 0;) {
      policy.streaming->host_groups = n;
      std::vector<Shortage> missing;
      if (auto run = complete_if_fits(request_, record(request_, policy), &missing)) return run;
      const Shortage& s = missing.front();
      if (s.tier == Tier::device) {
        gpu_was_short_ = true;
        const std::uint64_t map_of_one = map_of_pinned(all.of(n)).count / static_cast<unsigned>(n);
        const std::uint64_t over =
            (s.needed - s.allowed).count / std::max(map_of_one, std::uint64_t{1});
        n -= 1 + static_cast<int>(std::min<std::uint64_t>(over, static_cast<unsigned>(n)));
      } else {
        n = n == most ? n - 1 : n / 2;
      }
    }
    return std::nullopt;
  }

  bool many_in_host(const MemoryPolicy& p) const {
    return p.stream().host_groups >= tuning::kManyInHost * Streamed(request_, p).count();
  }

  // Of the groups that a plan streams.
  double share_in_host(const Start& s) const {
    const Streamed all(request_, s.policy);
    return static_cast<double>(all.in(room_beside(s))) / std::max(1, all.count());
  }

  // Which plan is the fastest may change when most is not read any more, and one that fills the
  // GPU's memory to the last megabyte leaves no place for its map of so much of the host's. So a
  // plan is looked for once more, for a disk that is faster by what need not be read.
  std::optional<Start> start_with_less_to_read(const Start& start) {
    const Streamed all(request_, start.policy);
    const int n = all.in(room_beside(start));
    const double share = share_in_host(start);
    if ((share < tuning::kManyInHost && !gpu_was_short_) || !worthwhile(all, n))
      return std::nullopt;
    Request relieved = request_;
    relieved.profile.disk_bandwidth /= 1 - std::min(share, tuning::kAlmostAllInHost);
    relieved.budget.gpu -= std::min(map_of_pinned(all.of(n)), relieved.budget.gpu);
    const auto run = search_plan(relieved, known_);
    if (!run || !streams_from_disk(request_, run->policy) || run->policy == start.policy) {
      return std::nullopt;
    }
    return start_at(*run);
  }

  struct Filled {
    MemoryPolicy policy;
    Bytes room;                  // that host memory has beside it
    double lower_bound_seconds;  // with a ring
    double share;                // of the best one's time that it must take less than
  };

  const Request& request_;
  NeedsCache& known_;
  double waiting_;  // share of a step before anything is filled
  std::vector<Filled> may_have_ring_;
  bool gpu_was_short_ = false;  // of place for its map of host memory
  PlannedRun best_;
};

}  // namespace

PlannedRun fill_host_memory(const Request& request, PlannedRun lean, NeedsCache& known) {
  const MemoryPolicy& p = lean.policy;
  const bool fills = request.job->may_fill() && request.job->depth() == request.job->blocks();
  if (fills && p.streams() && p.streaming->matrices_ahead == 0 &&
      p.streaming->stream_from == StreamSource::host && !p.offload &&
      request.job->trained() == Trained::adapters) {
    return HostFill(request, std::move(lean), known).with_activations_in_host();
  }
  if (!streams_from_disk(request, lean.policy)) return lean;
  return HostFill(request, std::move(lean), known).run();
}

}  // namespace ballast::fit
