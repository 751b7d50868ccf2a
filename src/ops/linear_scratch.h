#pragma once

// How the CUDA side of ops/linear.h cuts a call and lays out its scratch: a function of the call's
// LinearSize, so that a plan can be made on a machine without a GPU.

#include "ops/linear.h"
#include "ops/linear_cuda.h"

namespace ballast::ops::cuda {

inline constexpr std::int64_t kWorkspaceAlignment = 256;  // what cuBLASLt asks for its own
// Covers every algorithm that was seen; nearly all need nothing.
inline constexpr std::int64_t kLibraryWorkspace = 8 << 20;

// Rows that a product may read or write where they are.
inline bool in_sixteens(std::uintptr_t address, std::int64_t rows, std::int64_t row_stride,
                        DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return address % 16 == 0 && (rows <= 1 || row_stride * size % 16 == 0);
}
// The shortest row that starts the next one at a multiple of 16 bytes.
inline std::int64_t packed_stride(std::int64_t width, DType dtype) {
  const auto step = 16 / static_cast<std::int64_t>(size_of(dtype));
  return (width + step - 1) / step * step;
}

// Tensor cores multiply bf16: where one of the activations has no more digits, the product's
// operands need none. f32 activations (the time embedding, the head) are multiplied in f32,
// whatever the weights are stored as.
DType multiplied_type(DType x, DType y);
// What such a product costs.
Work product_work(Device device, DType x, DType y);

// Columns of the result that are made at once: all, except where weights are widened to f32 for
// them and would take more than kMostWidened bytes.
inline constexpr std::int64_t kMostWidened = 64 << 20;
std::int64_t columns_at_once(const LinearSize& s, bool forward);

LinearScratch forward_scratch(const LinearSize& s);
LinearScratch dx_scratch(const LinearSize& s);

// dw adds up the products of kTokenQuantum rows in order. Where it is narrow, one product is too
// small for the machine: several quanta are multiplied side by side into partial sums.
DwWay dw_way(const LinearSize& s);
std::int64_t dw_group(const LinearSize& s);
LinearScratch dw_scratch(const LinearSize& s);

}  // namespace ballast::ops::cuda
