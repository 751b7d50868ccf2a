#include "fit/neighbours.h"

namespace ballast::fit {

bool computes_no_less(const MemoryPolicy& p, const MemoryPolicy& q) {
  const auto as_small = [](std::int64_t a, std::int64_t b) { return b == 0 || (a > 0 && a <= b); };
  return p.activations >= q.activations && p.split_backward >= q.split_backward &&
         as_small(p.chunk_tokens, q.chunk_tokens) &&
         as_small(p.heads_per_group, q.heads_per_group) &&
         as_small(p.samples_per_pass, q.samples_per_pass);
}

// From the same source, through no more slots, no more matrices ahead.
static bool prefetches_no_earlier(const Streaming& p, const Streaming& q) {
  return p.stream_from == q.stream_from && p.slots <= q.slots &&
         (p.matrices_ahead == q.matrices_ahead || q.matrices_ahead == 0 ||
          (p.matrices_ahead > 0 && p.matrices_ahead < q.matrices_ahead));
}

bool no_faster(const MemoryPolicy& p, const MemoryPolicy& q) {
  return computes_no_less(p, q) && p.offload == q.offload && p.split_backward == q.split_backward &&
         p.state_on_host >= q.state_on_host && p.streams() &&
         prefetches_no_earlier(p.stream(), q.stream());
}

std::vector<MemoryPolicy> neighbours(const Job& job, const MemoryPolicy& p) {
  std::vector<MemoryPolicy> all = {p};
  if (!p.streams() || p.streaming->matrices_ahead > 0) return all;
  // Others gain nothing by memory that is left.
  const bool in_pieces = !job.larger_chunks().empty();
  if (in_pieces && !p.offload && job.trained() != Trained::nothing) {
    all.push_back(p);
    all.back().offload = true;
  }
  if (p.split_backward) {
    all.push_back(p);
    all.back().split_backward = false;
  }
  if (p.streaming->slots > 1 && !in_pieces) return all;
  for (std::size_t i = 0, n = all.size(); i < n; ++i) {
    all.push_back(all[i]);
    all.back().streaming->slots = p.streaming->slots == 1 ? 2 : 1;
  }
  return all;
}

}  // namespace ballast::fit
