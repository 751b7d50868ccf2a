#include "ops/linear/fp8_linear_cuda.h"

#include "memory/gpu.h"
#include "ops/linear/linear_scratch.h"
#include "ops/linear/matrix_product_cuda.h"

namespace ballast::ops::cuda {
namespace {

// One algorithm for every number of rows: whether those that suit other numbers add along the
// contraction in the same order was not measured for fp8.
constexpr std::int64_t kChosenRows = 4096;

bool multiple(const void* p, std::uintptr_t of) {
  return reinterpret_cast<std::uintptr_t>(p) % of == 0;
}

bool rows_in_sixteens(const View& v) {
  return in_sixteens(reinterpret_cast<std::uintptr_t>(v.data), v.shape[0], v.strides[0], v.dtype);
}

// Never asks how many rows there are.
bool units_take(const Fp8LinearCall& a) {
  return a.y.dtype == DType::bf16 && a.x.shape[1] % 16 == 0 && a.w.shape[0] % 16 == 0 &&
         rows_in_sixteens(a.x) && rows_in_sixteens(a.w) && rows_in_sixteens(a.y);
}

std::int64_t row_stride(const View& v) {
  return v.shape[0] <= 1 ? packed_stride(v.shape[1], v.dtype) : v.strides[0];
}

// A scale per row where cuBLASLt takes it: at a multiple of 16 bytes.
const float* scale_of(const View& scale, std::int64_t rows, std::byte* scratch, void* stream,
                      Doing doing) {
  const std::int64_t have = scale ? scale.elements() : 0;
  if (have == rows && multiple(scale.data, 16)) return static_cast<const float*>(scale.data);
  auto* const to = reinterpret_cast<float*>(scratch);
  if (doing == Doing::run) spread_scale({scale.data, have, to, rows}, stream);
  return to;
}

// Of y's type, at a multiple of 16 bytes.
const void* bias_of(const Fp8LinearCall& a, void* stream, Doing doing) {
  if (!a.bias) return nullptr;
  if (a.bias.dtype == a.y.dtype && multiple(a.bias.data, 16)) return a.bias.data;
  View from = a.bias;  // [N] as a matrix of one row
  from.rank = 2;
  from.shape[0] = 1;
  from.shape[1] = from.strides[0] = a.y.shape[1];
  from.strides[1] = 1;
  View to = from;
  to.data = a.workspace + a.scratch.bias;
  to.dtype = a.y.dtype;
  if (doing == Doing::run) expand({from, to, {}}, stream);
  return to.data;
}

}  // namespace

void fp8_linear(const Fp8LinearCall& a, GpuQueue& queue, Doing doing) {
  const std::int64_t rows = a.x.shape[0], outputs = a.w.shape[0];
  if (rows == 0) return;
  void* const stream = queue.stream().native;
  ProductKind kind;
  kind.rows = rows;
  kind.columns = outputs;
  kind.depth = a.x.shape[1];
  kind.left_stride = row_stride(a.x);
  kind.right_stride = row_stride(a.w);
  kind.out_stride = row_stride(a.y);
  kind.right_transposed = true;
  kind.bias = static_cast<bool>(a.bias);
  kind.gelu = a.gelu;
  kind.in = DType::f8_e4m3;
  kind.out = a.y.dtype;
  kind.chosen_rows = kChosenRows;

  auto& products = queue.local<MatrixProducts>();
  const bool by_library = units_take(a);
  if (doing == Doing::prepare) {
    if (by_library) products.prepare(kind);
    return;
  }
  ProductOperands operands;
  operands.left = a.x.data;
  operands.right = a.w.data;
  operands.left_scale = scale_of(a.x_scale, rows, a.workspace + a.scratch.x_scale, stream, doing);
  operands.right_scale =
      scale_of(a.w_scale, outputs, a.workspace + a.scratch.w_scale, stream, doing);
  operands.bias = bias_of(a, stream, doing);
  operands.out = a.y.data;
  operands.workspace = a.workspace;
  operands.accumulate = a.accumulate;
  if (by_library) {
    products.run(kind, operands);
  } else {
    products.run_plainly(kind, operands);
  }
}

}  // namespace ballast::ops::cuda
