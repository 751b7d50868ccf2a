#include "fit/bounds.h"

#include <algorithm>
#include <numeric>

#include "core/to_size.h"

namespace ballast::fit {
namespace {

// For groups that stay.
Bytes room_to_stay(const Request& r, const MemoryPolicy& policy, const NeedsLowerBound& needs) {
  const bool host = r.job->stays_in_host_memory(policy);
  const Bytes all = host ? r.budget.host : r.budget.gpu;
  return all - std::min(host ? needs.host : needs.device, all);
}

// For weights that are not read from disk again and again, and all that training keeps with them.
Bytes largest_place(const Request& r) {
  if (r.job->trained() != Trained::weights) return Bytes{~0ull};
  const Bytes gpu = r.budget.gpu, host = r.budget.host;
  // The sum of a budget without limit is no larger than that.
  return r.backend.device == Device::cpu ? host : std::max({gpu + host, gpu, host});
}

Bytes over(Bytes needed, Bytes allowed) { return needed > allowed ? needed - allowed : Bytes{}; }

Bytes sum_of(const std::vector<Bytes>& all) {
  return std::accumulate(all.begin(), all.end(), Bytes{});
}

// Whether there is a place for the weights alone; known without recording anything.
bool weights_fit(const Request& r, const std::vector<Bytes>& group_bytes) {
  const Bytes others = r.job->held_by_others();
  if (r.job->others_are_resident() && others > r.budget.gpu) return false;
  return sum_of(group_bytes) + others <= largest_place(r);
}

}  // namespace

Request heaviest(const Request& request) {
  Request r = request;
  r.job = request.job->heaviest();
  return r;
}

std::optional<MemoryPolicy> with_streamed_blocks(const Request& request, MemoryPolicy policy) {
  if (!request.streamed_blocks) return policy;
  const std::int64_t blocks = *request.streamed_blocks, layers = request.job->blocks();
  if (blocks == 0) {
    policy.streaming.reset();
    return policy;
  }
  if (!policy.streams()) return std::nullopt;
  // The head is the first group that stays, the embeddings are the last.
  policy.streaming->resident_groups = blocks == layers ? 0 : static_cast<int>(layers + 1 - blocks);
  return policy;
}

std::vector<MemoryPolicy> lean_policies(const Request& request, int disk_state_groups) {
  std::vector<MemoryPolicy> all;
  for (MemoryPolicy& p :
       request.switches.any() ? request.job->switched(request.switches) : request.job->leanest()) {
    p.disk_state_groups = disk_state_groups;
    if (auto forced = with_streamed_blocks(request, std::move(p)))
      all.push_back(std::move(*forced));
  }
  return all;
}

int max_disk_state_groups(const Request& request, NeedsCache& known) {
  const Job& job = *request.job;
  if (!job.may_keep_state_on_disk() || request.switches.any()) return 0;
  if (request.budget.disk.count == 0) return 0;
  const int all = job.group_count();
  MemoryPolicy p = lean_policies(request).front();
  p.disk_state_groups = all;
  const auto room = static_cast<double>(request.budget.disk.count);
  while (p.disk_state_groups > 0) {
    const auto needed = static_cast<double>(known.needs_for(request, p).disk.count);
    if (needed <= room) break;
    const int by_share = static_cast<int>(p.disk_state_groups * room / needed);
    p.disk_state_groups = std::min(p.disk_state_groups - 1, by_share);
  }
  return p.disk_state_groups;
}

MinStreamed min_streamed(const Request& request, const std::vector<Bytes>& group_bytes,
                         const MemoryPolicy& policy, const NeedsLowerBound& needs, Bytes block) {
  const auto all = static_cast<int>(group_bytes.size());
  const Bytes sum = sum_of(group_bytes);
  MinStreamed least = {.resident = 0, .blocks = request.job->blocks(), .bytes = sum};
  const Bytes room = room_to_stay(request, policy, needs);
  for (int resident = 1; resident < all; ++resident) {
    MinStreamed streamed;
    Bytes stays;
    for (int g = 0; g < all; ++g) {
      const bool is_block = g > 0 && g <= request.job->blocks();
      const Bytes bytes = group_bytes[to_size(g)];
      if (evenly_chosen(g, all, resident)) {
        stays += is_block ? std::max(block, bytes) : bytes;
        continue;
      }
      streamed.blocks += is_block;
      streamed.bytes += bytes;
    }
    // Vectors are on the device in any case, and slots are for the largest that
    // streams.
    Bytes more = room + Bytes{room.count / 256};
    if (streamed.blocks == 0)
      more += std::ranges::max(group_bytes) * static_cast<std::uint64_t>(policy.stream().slots);
    if (stays > more) continue;
    least.resident = resident;
    least.blocks = std::min(least.blocks, streamed.blocks);
    least.bytes = std::min(least.bytes, streamed.bytes);
  }
  return least;
}

Bytes missing_lower_bound(const Request& request, const std::vector<Bytes>& group_bytes,
                          const MemoryPolicy& policy, const NeedsLowerBound& needs, Bytes block) {
  if (!host_may_shrink(request, policy)) return excess(request, needs);
  const Bytes device = over(needs.device, request.budget.gpu);
  const MinStreamed streamed = min_streamed(request, group_bytes, policy, needs, block);
  if (streamed.blocks == 0) return device;
  // Programs that bring less are shorter, and less is pinned.
  const Bytes less = needs.recorded + Bytes{needs.host.count / 256};
  const Bytes both = over(needs.device + needs.host, largest_place(request) + less);
  if (request.backend.device == Device::cpu) return std::max(device, both);
  // No more leaves host memory than these groups have of all that is there.
  const Bytes sum = sum_of(group_bytes);
  const double share = static_cast<double>(streamed.bytes.count) / static_cast<double>(sum.count);
  const Bytes host{static_cast<std::uint64_t>(share * static_cast<double>(needs.host.count))};
  return std::max({device, both, device + over(host, request.budget.host + less)});
}

bool has_good_odds(const Request& search, NeedsCache& known, int disk_state_groups) {
  const std::vector<Bytes> groups = min_group_bytes(search, disk_state_groups > 0);
  if (!weights_fit(search, groups)) return false;
  return std::ranges::any_of(lean_policies(search, disk_state_groups), [&](const MemoryPolicy& p) {
    if (search.job->others_need_less_host()) {
      return known.needs_for(search, p).device <= search.budget.gpu;
    }
    return !known.exceeds_bound(search, p) &&
           missing_lower_bound(search, groups, p, known.needs_for(search, p)).count == 0;
  });
}

FitOdds fit_odds(const Request& search, NeedsCache& known, int disk_state_groups) {
  const std::vector<Bytes> groups = min_group_bytes(search, disk_state_groups > 0);
  if (!weights_fit(search, groups)) return FitOdds::none;
  if (has_good_odds(search, known, disk_state_groups)) return FitOdds::good;
  FitOdds best = FitOdds::none;
  for (const MemoryPolicy& p : lean_policies(search, disk_state_groups)) {
    // Where so much is missing for sure it is more than a few tensors, whatever a recording of all
    // blocks would add: twice what counts as few.
    if (const auto least = known.needs_resident(search, p)) {
      const std::uint64_t tensors = (least->device + least->host).count;
      if (missing_lower_bound(search, groups, p, *least) >
          least->recorded + least->recorded + Bytes{tensors / 8}) {
        continue;
      }
    }
    const NeedsLowerBound needs = known.needs_for(search, p);
    const Bytes missing = missing_lower_bound(search, groups, p, needs);
    const std::uint64_t tensors = (needs.device + needs.host).count;
    if (missing <= needs.recorded) {
      best = FitOdds::by_length;
    } else if (missing <= needs.recorded + Bytes{tensors / 16}) {
      best = std::max(best, FitOdds::slight);
    }
  }
  return best;
}

}  // namespace ballast::fit
