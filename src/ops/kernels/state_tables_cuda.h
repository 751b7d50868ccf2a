#pragma once

#include <cstdint>

#include "ops/kernels/dynamic_map.h"

namespace ballast {
class GpuQueue;
}

namespace ballast::ops::cuda {

// The two number formats of 8-bit states (ops/kernels/dynamic_map.h) as a kernel looks them up, by
// numbers times 2^-103, so that those from 2^-23 to 1 have exponents from 1 on and all below, among
// which is no threshold but zero, become 0 or are not normal. They are cut into buckets by exponent
// and upper seven fraction bits, in none of which is more than one threshold. So an entry can hold
// the lower code and where, in the lower 16 bits of the number, the higher one begins: added to the
// number's bits the sum carries into the code, which is its third byte. Where the number is
// negative, the third byte is the code with all bits turned.
inline constexpr std::uint32_t kBucketShift = 16, kMinExponent = 127 - 23;
inline constexpr std::uint32_t kStateBuckets = (24 << 7) + 1;

struct alignas(16) StateTables {
  float m_value[256], v_value[256];
  std::uint32_t m_code[2 * kStateBuckets];  // of positive numbers, then of negative ones
  std::uint32_t v_code[kStateBuckets];
};

StateTables make_state_tables();
// Static data of the kernels' module (ops/adamw_8bit_cuda.cu), which is loaded with them: no plan
// has to have memory for it.
StateTables* state_tables_in_module();
// The same, filled when a queue asks first.
const StateTables* state_tables(GpuQueue& queue);

}  // namespace ballast::ops::cuda
