#pragma once

// What a warp and its tensor cores do together: products of 16 x 16 and 16 x 8 matrices of bf16,
// loads of their operands from shared memory, copies into it that run beside the arithmetic. From
// sm_80 on; on the emulated GPU the same by exchanges between lanes. Included by .cu files only.
//
// Lane 4 g + t holds of a matrix [16, 16] at the left rows g and g + 8, of one [16, 8] at the right
// column g, of a result [16, 8] rows g and g + 8: columns (or rows) 2 t and 2 t + 1 of each eight.

#include "ops/kernels/cuda_kernel.cuh"

namespace ballast::ops::cuda {

// [16, 16] bf16: x[0] row g, x[1] row g + 8, columns 0 ... 7; x[2], x[3] columns 8 ... 15.
struct LeftMatrix {
  unsigned x[4];
};

__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  const __nv_bfloat162 p = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&p);
}

__device__ __forceinline__ float2 unpack_bf16(unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

#ifdef __CUDACC__

// sum [16, 8] += a [16, 16] b [16, 8]; b0: rows 0 ... 7 of b, b1: rows 8 ... 15.
__device__ __forceinline__ void multiply_add(float (&sum)[4], const LeftMatrix& a, unsigned b0,
                                             unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices from shared memory; row r of the m-th begins where lane 8 m + r says. Of each
// lane 4 g + t gets row g, columns 2 t and 2 t + 1; of the transposed ones column g.
__device__ __forceinline__ void load_matrices(unsigned (&x)[4], const uint4* row) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void load_transposed(unsigned (&x)[4], const uint4* row) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}

// to (shared) = 16 bytes of from (global), or 0; there after wait_for_copies() of the same thread.
__device__ __forceinline__ void start_copy(uint4* to, const void* from, bool real) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(at), "l"(from), "r"(real ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" : : : "memory");
}

// 2^x, 0 below the normal numbers.
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

inline void multiply_add(float (&sum)[4], const LeftMatrix& a, unsigned b0, unsigned b1) {
  struct Operands {
    float a[8], b[4];
  };
  // Two places in turn: no lane can be two products ahead of another.
  static thread_local Operands places[2][32];
  static thread_local unsigned turns[32];
  const unsigned lane = emulated::lane(), g = lane / 4, t = lane % 4;
  Operands(&all)[32] = places[turns[lane]++ % 2];
  const auto low = [](unsigned x) { return __uint_as_float(x << 16); };
  const auto high = [](unsigned x) { return __uint_as_float(x & 0xffff0000u); };
  for (int i = 0; i < 4; ++i) {
    all[lane].a[2 * i] = low(a.x[i]), all[lane].a[2 * i + 1] = high(a.x[i]);
  }
  all[lane].b[0] = low(b0), all[lane].b[1] = high(b0);
  all[lane].b[2] = low(b1), all[lane].b[3] = high(b1);
  emulated::warp_barrier();
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned column = 2 * t + i % 2, lower = i / 2;  // row g + 8 lower
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned within = k % 8;
      sum[i] += all[4 * g + within / 2].a[4 * (k / 8) + 2 * lower + within % 2] *
                all[4 * column + within / 2].b[2 * (k / 8) + within % 2];
    }
  }
}

inline void emulated_matrices(unsigned (&x)[4], const uint4* row, bool transposed) {
  unsigned long long* const slots = emulated::warp_slots();
  const unsigned lane = emulated::lane(), g = lane / 4, t = lane % 4;
  slots[lane] = reinterpret_cast<unsigned long long>(row);
  emulated::warp_barrier();
  for (unsigned m = 0; m < 4; ++m) {
    const auto element = [&](unsigned i, unsigned j) -> unsigned {
      return reinterpret_cast<const std::uint16_t*>(slots[8 * m + i])[j];
    };
    x[m] = transposed ? element(2 * t, g) | element(2 * t + 1, g) << 16
                      : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
  }
  emulated::warp_barrier();
}
inline void load_matrices(unsigned (&x)[4], const uint4* row) { emulated_matrices(x, row, false); }
inline void load_transposed(unsigned (&x)[4], const uint4* row) { emulated_matrices(x, row, true); }

inline void start_copy(uint4* to, const void* from, bool real) {
  *to = real ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}
inline void wait_for_copies() {}
inline float power_of_2(float x) { return std::exp2(x); }

#endif

}  // namespace ballast::ops::cuda
