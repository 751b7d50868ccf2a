#pragma once

#include <cstddef>

#include "ops/kernels/cuda_view.h"
#include "ops/linear/weight_scale.h"

namespace ballast {
class GpuQueue;
}

namespace ballast::ops::cuda {

// --- The products of ops/linear/linear.h by cuBLASLt (linear_cuda.cpp).
//
// cuBLASLt sees only bf16 or only f32 operands whose rows start at multiples of 16 bytes; whatever
// is of another type, scaled, or elsewhere is copied to scratch first. So its choice of an
// algorithm depends neither on strides nor on addresses.

// Where the parts of a call's scratch start, in bytes; see ops/linear/linear_scratch.h.
struct LinearScratch {
  std::int64_t left = 0, right = 0, out = 0;  // copies of operands
  std::int64_t bias = 0;                      // a copy of it, or partial sums of dbias
  std::int64_t partials = 0;                  // of dw
  std::int64_t bytes = 0;                     // of everything
};

enum class Doing {
  run,
  prepare,  // makes what a run must not; launches nothing
};

// out = alpha * in op(w) + bias (+ out), or gelu of that, and pre, if it is there, what gelu is of.
struct LinearCall {
  View in, w, bias, out, pre;
  WeightScale scale;
  bool transposed = false;  // op(w) = w^T
  std::int64_t columns_at_once = 0;
  DType type = DType::bf16;  // of the operands while they are multiplied
  float alpha = 1;
  bool accumulate = false;
  bool gelu = false;
  bool one_product_for_both = false;  // out and pre
  LinearScratch scratch;
  std::byte* workspace = nullptr;
};
void linear(const LinearCall& a, GpuQueue& queue, Doing doing);

enum class DwMethod {
  at_once,   // one product over all rows
  quanta,    // one after the other
  partials,  // several side by side, whose sums are then added in order
};

struct LinearDwCall {  // dw += alpha * dy^T x, dbias += alpha * column sums of dy
  View x, dy, dw, dbias;
  DType type = DType::bf16;
  DwMethod method = DwMethod::quanta;
  bool overwrite = false;    // at once only
  std::int64_t quantum = 1;  // rows of a product, of DwMethod::quanta
  std::int64_t group = 1;    // quanta whose partial sums are made at once
  float alpha = 1;
  LinearScratch scratch;
  std::byte* workspace = nullptr;
};
void linear_dw(const LinearDwCall& a, GpuQueue& queue, Doing doing);

// --- Kernels (linear_cuda.cu).

// to = from * scale, formed in f32 and rounded once. from: [R, C] of a type that weights may have,
// at any address; to: [R, C] f32 or bf16.
struct Expand {
  View from, to;
  WeightScale scale;
};
void expand(const Expand& a, void* stream);

// out[b] = alpha * left[b] right[b] + bias (+ out[b]), or gelu of that, for any size: what cuBLASLt
// does not take.
// Sums run over the contraction in order, in f32.
struct PlainProduct {
  struct Matrix {
    const void* data = nullptr;
    std::int64_t row = 0, column = 0, batch = 0;  // elements from one to the next
  };
  Matrix left, right;                  // [R, D], [D, C] of type in: f32, bf16 or f8_e4m3
  const float* left_scale = nullptr;   // [R], factors of the sums; or none
  const float* right_scale = nullptr;  // [C]
  Matrix bias;                         // [C] of type out_type, or none
  void* out = nullptr;                 // [R, C]
  std::int64_t out_row = 0, out_batch = 0;
  std::int64_t rows = 0, columns = 0, depth = 0, batches = 1;
  DType in = DType::bf16, out_type = DType::bf16;
  float alpha = 1;
  bool accumulate = false;
  bool gelu = false;
};
void plain_product(const PlainProduct& a, void* stream);

// out = alpha * left right (+ out) of few columns (narrow_product_cuda.cu): a product as adapters
// have, too small for kernels whose blocks walk along the whole contraction. left [R, D] and out
// [R, C] are bf16 and row-major, right is bf16 and lies as [D, C] or, transposed, as [C, D]; rows
// of left and of a transposed right begin at multiples of 16 bytes.
struct NarrowProduct {
  const void* left = nullptr;
  const void* right = nullptr;
  void* out = nullptr;
  std::int64_t left_stride = 0, right_stride = 0, out_stride = 0;  // elements from row to row
  std::int64_t rows = 0, columns = 0, depth = 0;
  bool right_transposed = false;
  bool accumulate = false;
  float alpha = 1;
};
constexpr bool narrow_product_takes(std::int64_t columns, std::int64_t depth) {
  return columns <= 64 && depth >= 1024 && depth % 32 == 0;
}
void narrow_product(const NarrowProduct& a, void* stream);

// to[r, c] += parts[0][r, c] + parts[1][r, c] + ..., one after the other. to: [R, C] f32.
struct OrderedSum {
  View to;
  const float* parts = nullptr;
  std::int64_t count = 0, step = 0, row = 0;  // parts, elements from part to part, row to row
};
void ordered_sum(const OrderedSum& a, void* stream);

// sums[q, c] = alpha * the sum of x[r, c] over the rows of quantum q, in order. x: [R, C] f32 or
// bf16; sums: f32, C elements from quantum to quantum.
struct QuantumSums {
  View x;
  float* sums = nullptr;
  std::int64_t quantum = 1;
  float alpha = 1;
};
void quantum_sums(const QuantumSums& a, void* stream);

}  // namespace ballast::ops::cuda
