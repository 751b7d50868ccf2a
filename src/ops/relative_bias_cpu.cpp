#include "core/thread_pool.h"
#include "ops/relative_bias.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

std::int64_t bucket(const RelativeBuckets& b, std::int64_t distance) {
  const bool behind = b.bidirectional && distance > 0;
  const std::int64_t n = behind ? distance : distance < 0 ? -distance : 0;
  std::int64_t last = b.side - 1;
  while (b.edge[last] > n) --last;
  return behind ? b.side + last : last;
}

}  // namespace

// Heads are independent. Few numbers: nothing here is worth a vector.
void relative_bias(const RelativeBias& a, ThreadPool& pool) {
  const std::int64_t heads = a.bias.shape.begin()[0], entries = a.bias.shape.begin()[1];
  const auto* table = reinterpret_cast<const float*>(a.table.data);
  auto* bias = reinterpret_cast<float*>(a.bias.data);
  pool.parallel(heads, [&](std::int64_t h, int) {
    for (std::int64_t e = 0; e < entries; ++e) {
      bias[h * entries + e] = table[bucket(a.buckets, e - a.zero) * heads + h];
    }
  });
}

void relative_bias_backward(const RelativeBiasBackward& a, ThreadPool& pool) {
  const std::int64_t heads = a.dbias.shape.begin()[0], entries = a.dbias.shape.begin()[1];
  const auto* dbias = reinterpret_cast<const float*>(a.dbias.data);
  auto* dtable = reinterpret_cast<float*>(a.dtable.data);
  pool.parallel(heads, [&](std::int64_t h, int) {
    float sums[RelativeBuckets::kMax] = {};
    for (std::int64_t e = 0; e < entries; ++e) {
      sums[bucket(a.buckets, e - a.zero)] += dbias[h * entries + e];
    }
    const std::int64_t count = a.buckets.bidirectional ? 2 * a.buckets.side : a.buckets.side;
    for (std::int64_t n = 0; n < count; ++n) dtable[n * heads + h] += sums[n];
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
