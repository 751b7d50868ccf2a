// The calls of cuBLASLt that Ballast makes, computed plainly: column-major products as its
// documentation defines them, so that our mapping of row-major operands is tested.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"
#include "emulated_recording.h"
#include "ops/kernels/cuda_libraries.h"

namespace ballast::ops::cuda {
namespace {

struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t stride = 0, batch_stride = 0;
  std::int32_t batches = 1;
};
struct Product {
  cublasOperation_t left = CUBLAS_OP_N, right = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int32_t bias_type = -1;
  void* before_gelu = nullptr;
  std::int64_t before_gelu_stride = 0;
  cublasLtMatmulMatrixScale_t scale_mode[2] = {CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                                               CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F};
  const float* scale[2] = {};  // of A and B
};

DType dtype_of(int type) {
  if (type == CUDA_R_8F_E4M3) return DType::f8_e4m3;
  check(type == CUDA_R_32F || type == CUDA_R_16BF, "cuBLASLt: type {}", type);
  return type == CUDA_R_32F ? DType::f32 : DType::bf16;
}
std::size_t size_of_type(int type) { return size_of(dtype_of(type)); }

Layout* layout(cublasLtMatrixLayout_t l) { return reinterpret_cast<Layout*>(l); }
Product* product(cublasLtMatmulDesc_t d) { return reinterpret_cast<Product*>(d); }

template <class T>
void take(T& to, const void* from, std::size_t size) {
  check(size == sizeof to, "cuBLASLt: an attribute of {} bytes, expected {}", size, sizeof to);
  std::memcpy(&to, from, size);
}

// Column-major elements of one batch as f32, [rows, columns] packed by columns.
std::vector<float> read(const void* data, const Layout& l, std::int64_t batch) {
  const auto rows = static_cast<std::int64_t>(l.rows),
             columns = static_cast<std::int64_t>(l.columns);
  const auto size = static_cast<std::int64_t>(size_of_type(l.type));
  check(l.stride >= rows, "cuBLASLt: a leading dimension of {} for {} rows", l.stride, rows);
  std::vector<float> out(to_size(rows * columns));
  const auto* from = static_cast<const std::byte*>(data) + batch * l.batch_stride * size;
  for (std::int64_t c = 0; c < columns; ++c) {
    convert(from + c * l.stride * size, dtype_of(l.type), out.data() + c * rows, DType::f32, rows);
  }
  return out;
}

cublasStatus_t create(cublasLtHandle_t* h) {
  *h = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasLtHandle_t h) {
  delete reinterpret_cast<char*>(h);
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t version() { return 130000; }
const char* text_of(cublasStatus_t) { return "an error of the emulated cuBLASLt"; }

cublasStatus_t desc_create(cublasLtMatmulDesc_t* d, cublasComputeType_t compute,
                           cudaDataType_t scale) {
  check(compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F, "cuBLASLt: compute type {}",
        static_cast<int>(compute));
  *d = reinterpret_cast<cublasLtMatmulDesc_t>(new Product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t desc_set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void* v,
                        std::size_t n) {
  switch (a) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      take(product(d)->left, v, n);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      take(product(d)->right, v, n);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      take(product(d)->epilogue, v, n);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      take(product(d)->bias, v, n);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      take(product(d)->bias_type, v, n);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      take(product(d)->before_gelu, v, n);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      take(product(d)->before_gelu_stride, v, n);
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      take(product(d)->scale_mode[0], v, n);
      break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      take(product(d)->scale_mode[1], v, n);
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      take(product(d)->scale[0], v, n);
      break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      take(product(d)->scale[1], v, n);
      break;
    default:
      check(false, "cuBLASLt: attribute {} of a product", static_cast<int>(a));
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t desc_destroy(cublasLtMatmulDesc_t d) {
  delete product(d);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t layout_create(cublasLtMatrixLayout_t* l, cudaDataType_t type, std::uint64_t rows,
                             std::uint64_t columns, std::int64_t stride) {
  *l = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t layout_set(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a,
                          const void* v, std::size_t n) {
  switch (a) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      take(layout(l)->batches, v, n);
      break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      take(layout(l)->batch_stride, v, n);
      break;
    default:
      check(false, "cuBLASLt: attribute {} of a layout", static_cast<int>(a));
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t layout_destroy(cublasLtMatrixLayout_t l) {
  delete layout(l);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t preference_create(cublasLtMatmulPreference_t* p) {
  *p = reinterpret_cast<cublasLtMatmulPreference_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_set(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                              const void*, std::size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_destroy(cublasLtMatmulPreference_t p) {
  delete reinterpret_cast<char*>(p);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t get_heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                             cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                             cublasLtMatmulPreference_t, int wanted,
                             cublasLtMatmulHeuristicResult_t* results, int* count) {
  check(wanted >= 1, "cuBLASLt: {} results", wanted);
  results[0] = {};
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t check_algorithm(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                               cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                               cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*,
                               cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  return CUBLAS_STATUS_SUCCESS;
}

bool in_sixteens(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

// What cuBLASLt asks of 8-bit operands, and where it would say no more than NOT_SUPPORTED.
void check_fp8(const Product& p, const Layout& a, const void* a_data, const Layout& b,
               const void* b_data, const Layout& d, const void* d_data) {
  check(p.left == CUBLAS_OP_T && p.right == CUBLAS_OP_N, "cuBLASLt: 8-bit products are TN");
  check(a.rows % 16 == 0 && d.rows % 16 == 0, "cuBLASLt: an 8-bit product of {} x {}", d.rows,
        a.rows);
  check(a.stride % 16 == 0 && b.stride % 16 == 0 && d.stride % 8 == 0 && in_sixteens(a_data) &&
            in_sixteens(b_data) && in_sixteens(d_data),
        "cuBLASLt: 8-bit operands off multiples of 16 bytes");
  const bool has_bias =
      p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
  check(d.type == CUDA_R_16BF && (!has_bias || p.bias_type == CUDA_R_16BF),
        "cuBLASLt: results or bias of an 8-bit product of type {}", static_cast<int>(d.type));
  for (int i = 0; i < 2; ++i) {
    check(p.scale_mode[i] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F && p.scale[i] &&
              in_sixteens(p.scale[i]),
          "cuBLASLt: scale {} of an 8-bit product", i);
  }
}

float gelu(float x) {
  return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

// D = alpha op(A) op(B) + beta C (+ bias along D's rows), or GELU of that
void multiplied(const Product& p, const Layout& la, const void* a, const Layout& lb, const void* b,
                const Layout& ld, void* d, float scale, float keep) {
  const bool ta = p.left == CUBLAS_OP_T, tb = p.right == CUBLAS_OP_T;
  const auto m = static_cast<std::int64_t>(ld.rows), n = static_cast<std::int64_t>(ld.columns);
  const auto k = static_cast<std::int64_t>(ta ? la.rows : la.columns);
  check(static_cast<std::int64_t>(ta ? la.columns : la.rows) == m &&
            static_cast<std::int64_t>(tb ? lb.rows : lb.columns) == n &&
            static_cast<std::int64_t>(tb ? lb.columns : lb.rows) == k,
        "cuBLASLt: sizes of a product that do not fit");
  check(la.batches == ld.batches && lb.batches == ld.batches, "cuBLASLt: batch counts differ");
  const bool fp8 = la.type == CUDA_R_8F_E4M3;
  check(fp8 == (lb.type == CUDA_R_8F_E4M3), "cuBLASLt: one operand of 8 bits");
  if (fp8) check_fp8(p, la, a, lb, b, ld, d);
  const std::size_t size = size_of_type(ld.type);
  std::vector<float> bias(to_size(m), 0.0f);
  const bool keeps =
      p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  const bool activates =
      keeps || p.epilogue == CUBLASLT_EPILOGUE_GELU || p.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
  if (keeps) {
    check(p.before_gelu && in_sixteens(p.before_gelu) && p.before_gelu_stride % 8 == 0 &&
              p.before_gelu_stride >= m && ld.batches == 1,
          "cuBLASLt: an auxiliary matrix with a leading dimension of {} for {} rows",
          p.before_gelu_stride, m);
  }
  if (p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
      p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
    convert(p.bias, dtype_of(p.bias_type < 0 ? ld.type : p.bias_type), bias.data(), DType::f32, m);
  } else {
    check(activates || p.epilogue == CUBLASLT_EPILOGUE_DEFAULT, "cuBLASLt: epilogue {}",
          static_cast<int>(p.epilogue));
  }
  for (std::int64_t batch = 0; batch < ld.batches; ++batch) {
    const std::vector<float> left = read(a, la, batch), right = read(b, lb, batch);
    std::byte* const out =
        static_cast<std::byte*>(d) + batch * ld.batch_stride * static_cast<std::int64_t>(size);
    for (std::int64_t j = 0; j < n; ++j) {
      std::vector<float> column(to_size(m), 0.0f);
      std::byte* const at = out + j * ld.stride * static_cast<std::int64_t>(size);
      if (keep != 0) convert(at, dtype_of(ld.type), column.data(), DType::f32, m);
      for (std::int64_t i = 0; i < m; ++i) {
        float sum = 0;
        for (std::int64_t x = 0; x < k; ++x) {
          sum += left[to_size(ta ? i * k + x : x * m + i)] *
                 right[to_size(tb ? x * n + j : j * k + x)];
        }
        if (fp8) sum *= p.scale[0][i] * p.scale[1][j];
        float& y = column[to_size(i)];
        y = scale * sum + keep * y + bias[to_size(i)];
      }
      if (keeps) {
        convert(column.data(), DType::f32,
                static_cast<std::byte*>(p.before_gelu) +
                    j * p.before_gelu_stride * static_cast<std::int64_t>(size),
                dtype_of(ld.type), m);
      }
      if (activates) std::ranges::transform(column, column.begin(), gelu);
      convert(column.data(), DType::f32, at, dtype_of(ld.type), m);
    }
  }
}

cublasStatus_t matmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                      cublasLtMatrixLayout_t a_layout, const void* b,
                      cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                      cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                      const cublasLtMatmulAlgo_t*, void*, std::size_t, cudaStream_t) {
  check(c == d, "cuBLASLt: C is not D");
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const auto multiply = [p = *product(desc), la = *layout(a_layout), lb = *layout(b_layout),
                         ld = *layout(d_layout), a, b, d, scale,
                         keep] { multiplied(p, la, a, lb, b, ld, d, scale, keep); };
  if (!::emulated::noted(multiply)) multiply();
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt all = {create,
                               destroy,
                               version,
                               text_of,
                               desc_create,
                               desc_set,
                               desc_destroy,
                               layout_create,
                               layout_set,
                               layout_destroy,
                               preference_create,
                               preference_set,
                               preference_destroy,
                               get_heuristic,
                               check_algorithm,
                               matmul};
  return all;
}
const Cudnn& cudnn() { fail(ErrorCode::device, "the emulated GPU has no cuDNN"); }

void check_cublas(cublasStatus_t status, const char* doing) {
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt failed while {}", doing);
}
void check_cudnn(cudnnStatus_t status, const char* doing) {
  check(status == CUDNN_STATUS_SUCCESS, "cuDNN failed while {}", doing);
}

}  // namespace ballast::ops::cuda
