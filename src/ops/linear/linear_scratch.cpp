#include "ops/linear/linear_scratch.h"

#include "ops/kernels/token_quantum.h"

namespace ballast::ops::cuda {
namespace {

constexpr std::int64_t kNarrow = 256;            // one dimension that gives a product few tiles
constexpr std::int64_t kMaxQuanta = 32;          // side by side: enough to fill a machine
constexpr std::int64_t kMaxPartials = 32 << 20;  // bytes of partial sums

std::int64_t matrix_bytes(std::int64_t rows, std::int64_t width, DType dtype) {
  return rows * packed_stride(width, dtype) * static_cast<std::int64_t>(size_of(dtype));
}

std::int64_t partial_bytes(const LinearSize& s) {
  return matrix_bytes(s.outputs, s.inputs, DType::f32);
}

std::int64_t quanta(const LinearSize& s) { return (s.rows + kTokenQuantum - 1) / kTokenQuantum; }

// Hands out one part after the other behind the library's own workspace.
class Layout {
 public:
  std::int64_t take(std::int64_t bytes) {
    const std::int64_t at = end_;
    end_ += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    return at;
  }
  std::int64_t end() const { return end_; }

 private:
  std::int64_t end_ = kLibraryWorkspace;
};

LinearScratch product_scratch(const LinearSize& s, bool forward) {
  LinearScratch p;
  if (s.rows == 0) return p;
  const DType type = multiplied_type(s.x, s.y);
  const bool w_stays = s.w == type && !s.scaled && s.w_aligned;
  const std::int64_t x = matrix_bytes(s.rows, s.inputs, forward ? type : s.x);
  const std::int64_t y = matrix_bytes(s.rows, s.outputs, forward ? s.y : type);
  const bool x_stays = s.x_aligned && (!forward || s.x == type);
  const bool y_stays = s.y_aligned && (forward || s.y == type);
  Layout layout;
  const std::int64_t columns = columns_at_once(s, forward);
  p.right = layout.take(w_stays   ? 0
                        : forward ? matrix_bytes(columns, s.inputs, type)
                                  : matrix_bytes(s.outputs, columns, type));
  p.left = layout.take(forward ? (x_stays ? 0 : x) : (y_stays ? 0 : y));
  p.out = layout.take(forward ? (y_stays ? 0 : y) : (x_stays ? 0 : x));
  p.bias = layout.take(forward ? 4 * s.outputs : 0);
  p.bytes = layout.end();
  return p;
}

}  // namespace

DType multiplied_type(DType x, DType y) {
  return x == DType::bf16 || y == DType::bf16 ? DType::bf16 : DType::f32;
}

Work product_work(Device device, DType x, DType y) {
  return device == Device::cuda && multiplied_type(x, y) == DType::f32 ? Work::f32_gemm
                                                                       : Work::gemm;
}

std::int64_t columns_at_once(const LinearSize& s, bool forward) {
  const std::int64_t columns = forward ? s.outputs : s.inputs;
  const std::int64_t depth = forward ? s.inputs : s.outputs;
  const bool widened = multiplied_type(s.x, s.y) == DType::f32 && s.w != DType::f32 && !s.scaled;
  if (!widened || 4 * columns * depth <= kMaxWidened) return columns;
  constexpr std::int64_t kPanel = 128;  // whole tiles of a product
  return std::min(columns, std::max(kPanel, kMaxWidened / 4 / depth / kPanel * kPanel));
}

LinearScratch forward_scratch(const LinearSize& s) { return product_scratch(s, true); }
LinearScratch dx_scratch(const LinearSize& s) { return product_scratch(s, false); }

DwMethod dw_method(const LinearSize& s) {
  const bool few_tiles = std::min(s.inputs, s.outputs) <= kNarrow;
  return few_tiles || !s.w_aligned ? DwMethod::partials : DwMethod::quanta;
}

std::int64_t dw_group(const LinearSize& s) {
  return std::clamp<std::int64_t>(kMaxPartials / partial_bytes(s), 1, kMaxQuanta);
}

LinearScratch dw_scratch(const LinearSize& s) {
  LinearScratch p;
  if (s.rows == 0) return p;
  const DType type = multiplied_type(s.x, s.y);
  const auto copy = [&](std::int64_t width, DType dtype, bool aligned) {
    return dtype == type && aligned ? 0 : matrix_bytes(s.rows, width, type);
  };
  Layout layout;
  p.left = layout.take(copy(s.outputs, s.y, s.y_aligned));
  p.right = layout.take(copy(s.inputs, s.x, s.x_aligned));
  p.bias = layout.take(4 * s.outputs * quanta(s));
  if (dw_method(s) == DwMethod::partials) {
    p.partials = layout.take(partial_bytes(s) * std::min(dw_group(s), quanta(s)));
  }
  p.bytes = layout.end();
  return p;
}

}  // namespace ballast::ops::cuda
