#pragma once

#include <compare>
#include <map>
#include <memory>
#include <mutex>

#include "core/dtype.h"
#include "ops/kernels/cuda_libraries.h"

namespace ballast {
class GpuQueue;
}

namespace ballast::ops::cuda {

// What cuBLASLt is asked to prepare: out = alpha * left right (+ out) (+ bias), or gelu (the tanh
// form) of the sum before it is rounded, for row-major left [R, D], right [D, C] and out [R, C],
// all at multiples of 16 bytes in every row. f8_e4m3 operands have an f32 scale per row of left and
// per column of right; left is as it is, right lies as [C, D], and C and D are multiples of 16.
struct ProductKind {
  std::int64_t rows = 0, columns = 0, depth = 0;
  std::int64_t left_stride = 0, right_stride = 0, out_stride = 0;  // elements from row to row
  std::int64_t batches = 1, left_step = 0, right_step = 0, out_step = 0;
  bool left_transposed = false;   // left lies in memory as [D, R]
  bool right_transposed = false;  // right lies in memory as [C, D]
  bool bias = false;              // [C] of out's type
  bool gelu = false;
  // Elements from row to row of a matrix of out's type that gets what gelu is applied to; 0: none.
  // At multiples of 16 bytes like the others. See takes().
  std::int64_t pre_stride = 0;
  DType in = DType::bf16, out = DType::bf16;
  // The algorithm is the one for so many rows and batches and for packed rows: what differs from
  // call to call then does not change the bits.
  std::int64_t chosen_rows = 0, chosen_batches = 1;

  auto operator<=>(const ProductKind&) const = default;
};

struct ProductOperands {
  const void* left = nullptr;
  const void* right = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  void* pre = nullptr;
  const float* left_scale = nullptr;  // [R] and [C] at multiples of 16 bytes, of f8_e4m3 only
  const float* right_scale = nullptr;
  float alpha = 1;
  bool accumulate = false;
  void* workspace = nullptr;  // kLibraryWorkspace bytes at a multiple of 256
};

// The prepared products of one queue: queue.local<MatrixProducts>(). A product that cuBLASLt does
// not take is computed by plain_product, unless it has a second result.
class MatrixProducts {
 public:
  explicit MatrixProducts(GpuQueue& queue);
  ~MatrixProducts();

  void prepare(const ProductKind& kind) { find(kind); }
  // Whether cuBLASLt does. Allocates nothing if the kind was prepared.
  bool takes(const ProductKind& kind);
  // Allocates nothing if the kind was prepared.
  void run(const ProductKind& kind, const ProductOperands& operands);
  // The same without cuBLASLt, for operands anywhere and of any size.
  void run_plainly(const ProductKind& kind, const ProductOperands& operands);

 private:
  struct Prepared;
  const Prepared& find(const ProductKind& kind);

  void* stream_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;  // attention by products is prepared beside other products
  std::map<ProductKind, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace ballast::ops::cuda
