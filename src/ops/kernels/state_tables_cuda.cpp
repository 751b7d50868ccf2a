#include "ops/kernels/state_tables_cuda.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "memory/gpu.h"

namespace ballast::ops::cuda {
namespace {

constexpr std::uint32_t kFractions = (1u << kBucketShift) - 1;

std::uint32_t code_of(const DynamicMap& map, float x) {
  return static_cast<std::uint32_t>(std::upper_bound(map.threshold, map.threshold + 255, x) -
                                    map.threshold);
}

struct Bucket {
  std::uint32_t first;  // bits of its least number as it is looked up
  std::uint32_t least;  // ... as it is
  float near, far;      // magnitudes
  explicit Bucket(std::uint32_t k)
      : first(k << kBucketShift), least(first + ((kMinExponent - 1) << 23)) {
    const bool tiny = k < 1u << (23 - kBucketShift);
    near = std::bit_cast<float>(tiny ? 1u : least);
    far = tiny                     ? std::bit_cast<float>((kMinExponent << 23) - 1)
          : k + 1 == kStateBuckets ? near
                                   : std::bit_cast<float>(least | kFractions);
  }
};

std::uint32_t positive_entry(const DynamicMap& map, const Bucket& b) {
  const std::uint32_t low = code_of(map, b.near), high = code_of(map, b.far);
  check(high - low <= 1, "{} thresholds lie between {} and {}", high - low, b.near, b.far);
  const std::uint32_t begins =
      high == low ? kFractions + 1 : std::bit_cast<std::uint32_t>(map.threshold[low]) - b.least;
  return (low << kBucketShift) + (kFractions + 1 - begins) - b.first;
}

std::uint32_t negative_entry(const DynamicMap& map, const Bucket& b) {
  const std::uint32_t high = code_of(map, -b.near), low = code_of(map, -b.far);
  check(high - low <= 1, "{} thresholds lie between {} and {}", high - low, -b.far, -b.near);
  // At the threshold it is still the higher one.
  const std::uint32_t begins =
      high == low ? kFractions + 1
                  : std::bit_cast<std::uint32_t>(-map.threshold[low]) + 1 - b.least;
  return ~((high << kBucketShift) + (begins - 1) + b.first);
}

struct TablesOnGpu {
  explicit TablesOnGpu(GpuQueue&) : tables(state_tables_in_module()) {
    const StateTables made = make_state_tables();
    gpu_copy(tables, &made, Bytes{sizeof made});
  }
  StateTables* tables;
};

}  // namespace

StateTables make_state_tables() {
  StateTables t;
  const DynamicMap &m = signed_map(), &v = unsigned_map();
  std::ranges::copy(m.value, t.m_value);
  std::ranges::copy(v.value, t.v_value);
  for (std::uint32_t k = 0; k < kStateBuckets; ++k) {
    const Bucket bucket(k);
    t.m_code[k] = positive_entry(m, bucket);
    t.m_code[kStateBuckets + k] = negative_entry(m, bucket);
    t.v_code[k] = positive_entry(v, bucket);
  }
  return t;
}

const StateTables* state_tables(GpuQueue& queue) { return queue.local<TablesOnGpu>().tables; }

}  // namespace ballast::ops::cuda
