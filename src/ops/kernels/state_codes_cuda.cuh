#pragma once

// 8-bit moments of an optimizer (ops/kernels/dynamic_map.h) for kernels in which a warp holds one
// block of states, eight to a thread. Included by .cu files only.

#include "ops/kernels/elementwise_cuda.cuh"
#include "ops/kernels/rounded_math_cuda.cuh"
#include "ops/kernels/state_tables_cuda.h"

namespace ballast::ops::cuda {

static_assert(kStateBlock == 32 * 8, "a warp holds one block of states, eight to a thread");

// The tables in shared memory. Entries of negative numbers lie so far behind those of positive ones
// that the sign is a bit of the address, and values lie there sixteen times, for as many lanes:
// were all to look at one copy, every look would take three turns.
constexpr std::uint32_t kAddressBits = 0x7ffc, kSignBit = 0x8000;
constexpr int kCopies = 16;
struct alignas(16) WorkTables {
  std::uint32_t m_positive[kStateBuckets], v_code[kStateBuckets];
  std::uint32_t unused[kSignBit / 4 - 2 * kStateBuckets];
  std::uint32_t m_negative[kStateBuckets], unused_too[3];
  float m_value[256 * kCopies], v_value[256 * kCopies];

  __device__ __forceinline__ void copy(const StateTables& from) {
    for (unsigned k = threadIdx.x; k < kStateBuckets; k += blockDim.x) {
      m_positive[k] = from.m_code[k];
      m_negative[k] = from.m_code[kStateBuckets + k];
      v_code[k] = from.v_code[k];
    }
    for (unsigned k = threadIdx.x; k < 256 * kCopies; k += blockDim.x) {
      m_value[k] = from.m_value[k / kCopies];
      v_value[k] = from.v_value[k / kCopies];
    }
  }
};
static_assert(sizeof(WorkTables) % 16 == 0 && sizeof(WorkTables) <= 99 << 10,
              "what every GPU gives a block");

// The value of the code that is byte k of codes.
__device__ __forceinline__ float value_of(const float* values, std::uint32_t codes, int k) {
  constexpr int kEntry = 6;  // bits of an address in the copies of one value
  const std::uint32_t lane = threadIdx.x % kCopies * 4;
  const std::uint32_t at = k == 0 ? codes << kEntry : codes >> (8 * k - kEntry);
  return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(values) +
                                         ((at & 0xffu << kEntry) | lane));
}
static_assert(kCopies * 4 == 1 << 6, "the entry's bits");

// The code of a number in the third byte: one look at the table and one sum. x: the number times
// kQuotientUnit.
__device__ __forceinline__ std::uint32_t entry_at(const std::uint32_t* table, std::uint32_t at) {
  return *reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const char*>(table) + at);
}
__device__ __forceinline__ std::uint32_t v_word(const WorkTables& tables, float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return entry_at(tables.v_code, bits >> (kBucketShift - 2) & kAddressBits) + bits;
}
// All bits of the code are turned where x is negative.
__device__ __forceinline__ std::uint32_t m_word(const WorkTables& tables, float x) {
  const std::uint32_t bits = __float_as_uint(x);
  const std::uint32_t at =
      selected_bits(kAddressBits, bits >> (kBucketShift - 2), fourth_as_second(bits));
  return entry_at(tables.m_positive, at) + bits;
}
static_assert(kBucketShift == 16, "the third byte");

// A call, so that what hardly happens takes no room among the instructions of what does.
static __device__ __attribute__((noinline)) float rare_quotient(float a, float b) {
  return __fdiv_rn(a, b);
}

// Eight codes of x / largest. largest: the same in all threads of the warp. Above 1 the quotient of
// a tiny negative number may be a zero, which has no sign.
template <bool kSigned>
__device__ __forceinline__ uint2 eight_codes(const WorkTables& tables, const float (&x)[8],
                                             float largest) {
  std::uint32_t word[8];
  float y[8];
  if (largest >= 0x1p-70f && largest <= (kSigned ? 1.0f : 0x1p23f)) {
    const ScaledDivisor by(largest);
#pragma unroll
    for (int k = 0; k < 8; ++k) y[k] = by.of(x[k]);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      y[k] = largest > 0 ? mul(add(rare_quotient(x[k], largest), 0.0f), kQuotientUnit) : 0.0f;
    }
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) word[k] = kSigned ? m_word(tables, y[k]) : v_word(tables, y[k]);
  uint2 codes = make_uint2(third_bytes(word[0], word[1], word[2], word[3]),
                           third_bytes(word[4], word[5], word[6], word[7]));
  if (kSigned) {
    const auto sign = [&](int k) { return __float_as_uint(y[k]); };
    codes.x ^= sign_bytes(sign(0), sign(1), sign(2), sign(3));
    codes.y ^= sign_bytes(sign(4), sign(5), sign(6), sign(7));
  }
  return codes;
}

// One moment in memory: codes with the magnitudes of their blocks, or plain f32 without.
struct Moment {
  void* data;
  float* absmax;

  __device__ __forceinline__ std::uint8_t* codes() const {
    return static_cast<std::uint8_t*>(data);
  }
  __device__ __forceinline__ void load(const float* values, std::int64_t i, int count,
                                       float (&x)[8]) const {
    if (absmax == nullptr) {
      load_some<false>(static_cast<const float*>(data) + i, count, x);
      return;
    }
    const float scale = absmax[i / kStateBlock];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      x[k] = k < count ? mul(value_of(values, codes()[i + k], 0), scale) : 0.0f;
    }
  }
  template <bool kSigned>
  __device__ __forceinline__ void store(const WorkTables& tables, std::int64_t i, int count,
                                        const float (&x)[8], float largest) const {
    if (absmax == nullptr) {
      store_some<false>(static_cast<float*>(data) + i, count, x);
      return;
    }
    if (i % kStateBlock == 0) absmax[i / kStateBlock] = largest;
    const uint2 eight = eight_codes<kSigned>(tables, x, largest);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k < count) {
        codes()[i + k] = static_cast<std::uint8_t>((k < 4 ? eight.x : eight.y) >> k % 4 * 8);
      }
    }
  }
};

}  // namespace ballast::ops::cuda
