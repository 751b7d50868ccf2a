#include "ops/linear/matrix_product_cuda.h"

#include <cstdint>

#include "core/error.h"
#include "core/to_size.h"
#include "memory/gpu.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/linear_scratch.h"

namespace ballast::ops::cuda {
namespace {

struct Destroy {
  void operator()(cublasLtMatmulDesc_t d) const { cublas_lt().desc_destroy(d); }
  void operator()(cublasLtMatrixLayout_t l) const { cublas_lt().layout_destroy(l); }
  void operator()(cublasLtMatmulPreference_t p) const { cublas_lt().preference_destroy(p); }
};
using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy>;

cudaDataType_t data_type(DType t) {
  if (t == DType::f8_e4m3) return CUDA_R_8F_E4M3;
  return t == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

template <class T>
void set(const Description& d, cublasLtMatmulDescAttributes_t name, const T& value) {
  check_cublas(cublas_lt().desc_set(d.get(), name, &value, sizeof value), "describing a product");
}
template <class T>
void set(const Layout& l, cublasLtMatrixLayoutAttribute_t name, const T& value) {
  check_cublas(cublas_lt().layout_set(l.get(), name, &value, sizeof value), "describing a matrix");
}
template <class T>
void set(const Preference& p, cublasLtMatmulPreferenceAttributes_t name, const T& value) {
  check_cublas(cublas_lt().preference_set(p.get(), name, &value, sizeof value),
               "choosing an algorithm");
}

cublasLtEpilogue_t epilogue(const ProductKind& k) {
  if (!k.gelu) return k.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  if (k.pre_stride == 0) return k.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  return k.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
}

// cuBLASLt counts columns first: a row-major product is its transpose, with the operands swapped.
Description describe(const ProductKind& k) {
  cublasLtMatmulDesc_t raw = nullptr;
  check_cublas(cublas_lt().desc_create(&raw, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "describing a product");
  Description d(raw);
  const auto operation = [](bool transposed) {
    return static_cast<std::int32_t>(transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  set(d, CUBLASLT_MATMUL_DESC_TRANSA, operation(k.right_transposed));
  set(d, CUBLASLT_MATMUL_DESC_TRANSB, operation(k.left_transposed));
  // Not read while an algorithm is chosen, but its alignment decides: the one that all have.
  const std::uintptr_t somewhere = (1u << 20) + 16;
  if (k.in == DType::f8_e4m3) {
    const auto mode = static_cast<std::int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set(d, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(d, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    set(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, somewhere);
    set(d, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, somewhere);
  }
  set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue(k)));
  if (k.pre_stride > 0) {
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, k.pre_stride);
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, somewhere);
  }
  if (k.bias) {
    set(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(data_type(k.out)));
    set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, somewhere);
  }
  return d;
}

// A matrix of `rows` rows in memory.
Layout matrix(DType dtype, std::int64_t rows, std::int64_t width, std::int64_t stride,
              std::int64_t batches, std::int64_t step) {
  cublasLtMatrixLayout_t raw = nullptr;
  check_cublas(cublas_lt().layout_create(&raw, data_type(dtype), static_cast<std::uint64_t>(width),
                                         static_cast<std::uint64_t>(rows), stride),
               "describing a matrix");
  Layout l(raw);
  if (batches > 1) {
    set(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batches));
    set(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
  }
  return l;
}

struct Layouts {
  Layout left, right, out;

  explicit Layouts(const ProductKind& k)
      : left(k.left_transposed
                 ? matrix(k.in, k.depth, k.rows, k.left_stride, k.batches, k.left_step)
                 : matrix(k.in, k.rows, k.depth, k.left_stride, k.batches, k.left_step)),
        right(k.right_transposed
                  ? matrix(k.in, k.columns, k.depth, k.right_stride, k.batches, k.right_step)
                  : matrix(k.in, k.depth, k.columns, k.right_stride, k.batches, k.right_step)),
        out(matrix(k.out, k.rows, k.columns, k.out_stride, k.batches, k.out_step)) {}
};

// The product whose algorithm this one uses.
ProductKind chosen_kind(const ProductKind& k) {
  ProductKind c = k;
  c.rows = k.chosen_rows;
  c.batches = k.chosen_batches;
  c.left_stride = packed_stride(k.left_transposed ? c.rows : c.depth, k.in);
  c.right_stride = packed_stride(k.right_transposed ? c.depth : c.columns, k.in);
  c.out_stride = packed_stride(c.columns, k.out);
  c.left_step = (k.left_transposed ? c.depth : c.rows) * c.left_stride;
  c.right_step = (k.right_transposed ? c.columns : c.depth) * c.right_stride;
  c.out_step = c.rows * c.out_stride;
  return c;
}

Preference preference() {
  cublasLtMatmulPreference_t raw = nullptr;
  check_cublas(cublas_lt().preference_create(&raw), "choosing an algorithm");
  Preference p(raw);
  set(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kLibraryWorkspace));
  // No contraction is split among blocks: how it is split depends on the number of rows.
  set(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
  for (const auto operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(p, operand, std::uint32_t{16});
  }
  return p;
}

void run_plain(const ProductKind& k, const ProductOperands& o, void* stream) {
  const auto operand = [](const void* data, bool transposed, std::int64_t stride,
                          std::int64_t step) {
    return PlainProduct::Matrix{data, transposed ? 1 : stride, transposed ? stride : 1, step};
  };
  PlainProduct p;
  p.left = operand(o.left, k.left_transposed, k.left_stride, k.left_step);
  p.right = operand(o.right, k.right_transposed, k.right_stride, k.right_step);
  if (k.bias) p.bias = {o.bias, 0, 1, 0};
  p.out = o.out;
  p.out_row = k.out_stride;
  p.out_batch = k.out_step;
  p.rows = k.rows;
  p.columns = k.columns;
  p.depth = k.depth;
  p.batches = k.batches;
  p.left_scale = o.left_scale;
  p.right_scale = o.right_scale;
  p.in = k.in;
  p.out_type = k.out;
  p.alpha = o.alpha;
  p.accumulate = o.accumulate;
  p.gelu = k.gelu;
  plain_product(p, stream);
}

}  // namespace

struct MatrixProducts::Prepared {
  Description description;
  Layouts layouts;
  cublasLtMatmulAlgo_t algorithm = {};
  bool taken = false;  // by cuBLASLt

  Prepared(const ProductKind& kind, cublasLtHandle_t handle)
      : description(describe(kind)), layouts(kind) {
    // Where rows of the operands do not end at 16 bytes, cuBLASLt's kernels round the product to
    // bf16 before they add the bias or apply gelu (measured: twice the error of one rounding).
    if ((kind.bias || kind.gelu) && kind.in == DType::bf16 && kind.depth % 8 != 0) return;
    const CublasLt& lt = cublas_lt();
    const ProductKind chosen = chosen_kind(kind);
    const Layouts choice(chosen);
    const Preference wanted = preference();
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    const cublasStatus_t status =
        lt.get_heuristic(handle, description.get(), choice.right.get(), choice.left.get(),
                         choice.out.get(), choice.out.get(), wanted.get(), 1, &result, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;
    check_cublas(status, "choosing an algorithm");
    if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS) return;
    algorithm = result.algo;
    cublasLtMatmulHeuristicResult_t checked = {};
    const cublasStatus_t fits =
        lt.check(handle, description.get(), layouts.right.get(), layouts.left.get(),
                 layouts.out.get(), layouts.out.get(), &algorithm, &checked);
    taken = fits == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= to_size(kLibraryWorkspace);
  }
};

MatrixProducts::MatrixProducts(GpuQueue& queue) : stream_(queue.stream().native) {
  check_cublas(cublas_lt().create(&handle_), "starting");
}

MatrixProducts::~MatrixProducts() {
  prepared_.clear();
  cublas_lt().destroy(handle_);
}

const MatrixProducts::Prepared& MatrixProducts::find(const ProductKind& kind) {
  const std::lock_guard lock(mutex_);
  const auto found = prepared_.find(kind);
  if (found != prepared_.end()) return *found->second;
  return *prepared_.emplace(kind, std::make_unique<Prepared>(kind, handle_)).first->second;
}

bool MatrixProducts::takes(const ProductKind& kind) { return find(kind).taken; }

void MatrixProducts::run_plainly(const ProductKind& kind, const ProductOperands& o) {
  run_plain(kind, o, stream_);
}

void MatrixProducts::run(const ProductKind& kind, const ProductOperands& o) {
  const Prepared& p = find(kind);
  if (!p.taken) {
    check(kind.pre_stride == 0, "a product with two results that cuBLASLt does not take");
    return run_plain(kind, o, stream_);
  }
  if (kind.in == DType::f8_e4m3) {  // cuBLASLt's A is our right operand
    set(p.description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, o.right_scale);
    set(p.description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, o.left_scale);
  }
  if (kind.bias) set(p.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
  if (kind.pre_stride > 0) {
    set(p.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, o.pre);
  }
  const float beta = o.accumulate ? 1 : 0;
  check_cublas(
      cublas_lt().matmul(handle_, p.description.get(), &o.alpha, o.right, p.layouts.right.get(),
                         o.left, p.layouts.left.get(), &beta, o.out, p.layouts.out.get(), o.out,
                         p.layouts.out.get(), &p.algorithm, o.workspace, kLibraryWorkspace,
                         static_cast<cudaStream_t>(stream_)),
      "multiplying matrices");
}

}  // namespace ballast::ops::cuda
