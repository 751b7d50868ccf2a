#include "models/wan/fit_chance.h"

#include <algorithm>
#include <numeric>

#include "models/wan/fit_switched.h"

namespace ballast::wan {
namespace {

std::int64_t tokens_of(const Batch& b) {
  std::int64_t sum = 0;
  for (const LatentSize& z : b.latents) sum += z.tokens();
  return sum;
}

Bytes room_on_device(const FitRequest& r, const LeastNeeds& needs) {
  return r.budget.gpu - std::min(needs.device, r.budget.gpu);
}

// For weights that are not read from disk again and again, and all that training keeps with them.
Bytes largest_place(const FitRequest& r) {
  if (r.job.mode != Mode::full) return Bytes{~0ull};
  return r.backend.device == Device::cpu ? r.budget.host : r.budget.gpu + r.budget.host;
}

// Of a teacher's weights those that are in memory all the time, one expert's: all where they do not
// come from disk.
Bytes held_of_teacher(const FitRequest& r) {
  if (!r.teacher) return {};
  const MemoryPolicy p = r.teacher->policy.value_or(teacher_policies().back());
  if (p.slots > 0 && p.home == WeightHome::disk) return {};
  std::uint64_t sum = 0;
  for (const WeightGroup& g : r.teacher->experts.front()) {
    for (const StoredTensor& t : g.tensors) {
      const bool as_stored = r.teacher->format == WeightFormat::stored;
      sum += static_cast<std::uint64_t>(t.data.shape.elements()) *
             (as_stored ? size_of(t.data.dtype) : 1);
    }
  }
  return {sum};
}

Bytes over(Bytes needed, Bytes allowed) { return needed > allowed ? needed - allowed : Bytes{}; }

Bytes sum_of(const std::vector<Bytes>& all) {
  return std::accumulate(all.begin(), all.end(), Bytes{});
}

// Whether there is a place for the weights alone; known without recording anything.
bool weights_fit(const FitRequest& r, const std::vector<Bytes>& group_bytes) {
  const Bytes teacher = held_of_teacher(r);
  const bool stays = r.teacher && r.teacher->policy && r.teacher->policy->slots == 0;
  if (stays && teacher > r.budget.gpu) return false;
  return sum_of(group_bytes) + teacher <= largest_place(r);
}

}  // namespace

FitRequest heaviest(const FitRequest& request) {
  FitRequest r = request;
  for (std::vector<Batch>* batches : {&r.job.batches, &r.job.eval_batches}) {
    if (batches->empty()) continue;
    std::swap(batches->front(), *std::ranges::max_element(*batches, {}, tokens_of));
    batches->resize(1);
  }
  return r;
}

std::optional<MemoryPolicy> with_streamed_blocks(const FitRequest& request, MemoryPolicy policy) {
  if (!request.streamed_blocks) return policy;
  const std::int64_t blocks = *request.streamed_blocks, layers = request.job.config.layers;
  if (blocks == 0) {
    policy.slots = policy.parts = 0;
    return policy;
  }
  if (policy.slots == 0) return std::nullopt;
  // The head is the first group that stays, the embeddings are the last.
  policy.resident_groups = blocks == layers ? 0 : static_cast<int>(layers + 1 - blocks);
  return policy;
}

std::vector<MemoryPolicy> lean_policies(const FitRequest& request, int disk_state_groups) {
  std::vector<MemoryPolicy> all;
  for (MemoryPolicy& p :
       request.switched() ? switched_policies(request) : leanest_policies(request.job)) {
    p.disk_state_groups = disk_state_groups;
    if (auto forced = with_streamed_blocks(request, std::move(p)))
      all.push_back(std::move(*forced));
  }
  return all;
}

int most_disk_state_groups(const FitRequest& request, KnownNeeds& known) {
  const DitJob& job = request.job;
  if (job.mode != Mode::full || !job.record_update || request.switched()) return 0;
  if (request.budget.disk.count == 0) return 0;
  const int all = group_count(job.config);
  MemoryPolicy p = lean_policies(request).front();
  p.disk_state_groups = all;
  const auto room = static_cast<double>(request.budget.disk.count);
  while (p.disk_state_groups > 0) {
    const auto needed = static_cast<double>(known.of(request, p).disk.count);
    if (needed <= room) break;
    const int by_share = static_cast<int>(p.disk_state_groups * room / needed);
    p.disk_state_groups = std::min(p.disk_state_groups - 1, by_share);
  }
  return p.disk_state_groups;
}

LeastStreamed least_streamed(const FitRequest& request, const std::vector<Bytes>& group_bytes,
                             const MemoryPolicy& policy, const LeastNeeds& needs, Bytes block) {
  const auto all = static_cast<int>(group_bytes.size());
  const Bytes sum = sum_of(group_bytes);
  LeastStreamed least = {.resident = 0, .blocks = request.job.config.layers, .bytes = sum};
  const Bytes room = room_on_device(request, needs);
  for (int resident = 1; resident < all; ++resident) {
    LeastStreamed streamed;
    Bytes stays;
    for (int g = 0; g < all; ++g) {
      const bool is_block = g > 0 && g + 1 < all;
      const Bytes bytes = group_bytes[static_cast<std::size_t>(g)];
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
      more += std::ranges::max(group_bytes) * static_cast<std::uint64_t>(policy.slots);
    if (stays > more) continue;
    least.resident = resident;
    least.blocks = std::min(least.blocks, streamed.blocks);
    least.bytes = std::min(least.bytes, streamed.bytes);
  }
  return least;
}

Bytes surely_missing(const FitRequest& request, const std::vector<Bytes>& group_bytes,
                     const MemoryPolicy& policy, const LeastNeeds& needs, Bytes block) {
  if (!host_may_shrink(request, policy)) return excess(request, needs);
  const Bytes device = over(needs.device, request.budget.gpu);
  const LeastStreamed streamed = least_streamed(request, group_bytes, policy, needs, block);
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

bool has_good_chance(const FitRequest& search, KnownNeeds& known, int disk_state_groups) {
  const std::vector<Bytes> groups = least_group_bytes(search, disk_state_groups > 0);
  if (!weights_fit(search, groups)) return false;
  return std::ranges::any_of(lean_policies(search, disk_state_groups), [&](const MemoryPolicy& p) {
    return !known.surely_over(search, p) &&
           surely_missing(search, groups, p, known.of(search, p)).count == 0;
  });
}

Chance chance(const FitRequest& search, KnownNeeds& known, int disk_state_groups) {
  const std::vector<Bytes> groups = least_group_bytes(search, disk_state_groups > 0);
  if (!weights_fit(search, groups)) return Chance::none;
  if (has_good_chance(search, known, disk_state_groups)) return Chance::good;
  Chance best = Chance::none;
  for (const MemoryPolicy& p : lean_policies(search, disk_state_groups)) {
    // Where so much is missing for sure it is more than a few tensors, whatever a recording of all
    // blocks would add: twice what counts as few.
    if (const auto least = known.of_staying(search, p)) {
      const std::uint64_t tensors = (least->device + least->host).count;
      if (surely_missing(search, groups, p, *least) >
          least->recorded + least->recorded + Bytes{tensors / 8}) {
        continue;
      }
    }
    const LeastNeeds needs = known.of(search, p);
    const Bytes missing = surely_missing(search, groups, p, needs);
    const std::uint64_t tensors = (needs.device + needs.host).count;
    if (missing <= needs.recorded) {
      best = Chance::by_length;
    } else if (missing <= needs.recorded + Bytes{tensors / 16}) {
      best = std::max(best, Chance::slight);
    }
  }
  return best;
}

}  // namespace ballast::wan
