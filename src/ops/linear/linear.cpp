#include "ops/linear/linear.h"

#include <algorithm>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/linear/linear_kernels.h"
#include "ops/linear/linear_scratch.h"

namespace ballast::ops {
namespace {

constexpr std::int64_t kScratchAlignment = 64;
constexpr std::int64_t kNarrowPanel = 128;  // below this, packing x again for a second panel costs
                                            // more than a second thread gains
constexpr std::int64_t kQuantaPerTask = 4;  // expanding a weight then costs 1 - 2 % of its product

std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }
std::int64_t round_up(std::int64_t n, std::int64_t to) { return pieces(n, to) * to; }

// Equal panels, an even number of them so that two threads share one quantum's work evenly; 16
// columns are the widest vector. Depends on the layer alone, because it decides the bits.
std::int64_t panel_width(std::int64_t columns) {
  const std::int64_t panels = 2 * pieces(columns, 2 * cpu::kPanel);
  return std::max(kNarrowPanel, round_up(pieces(columns, panels), 16));
}

// Row quanta of one task: many, to expand weights once for all of them, but not so many that
// threads have no task. Does not touch the bits: the calls are the same.
std::int64_t quanta_per_task(std::int64_t rows, std::int64_t columns, bool expand_w, int threads) {
  if (!expand_w) return 1;
  const std::int64_t quanta = pieces(rows, kTokenQuantum);
  const std::int64_t panels = pieces(columns, panel_width(columns));
  std::int64_t n = kQuantaPerTask;
  while (n > 1 && panels * pieces(quanta, n) < 2 * threads) n /= 2;
  return n;
}

// Floats of each part of one worker's scratch.
struct Parts {
  std::int64_t first = 0, second = 0, third = 0;

  std::int64_t floats() const { return padded(first) + padded(second) + padded(third); }
  std::int64_t bytes(int threads) const { return floats() * 4 * threads; }
  cpu::Scratch in(const TensorView& workspace) const {
    return {.data = reinterpret_cast<float*>(workspace.data),
            .stride = floats(),
            .first = 0,
            .second = padded(first),
            .third = padded(first) + padded(second)};
  }

 private:
  static std::int64_t padded(std::int64_t n) { return round_up(n, kScratchAlignment / 4); }
};

struct ProductSize {  // out[R, C] = in[R, D] op(w)
  std::int64_t rows, columns, depth;
  bool transposed, expand_w, expand_in, round_out;
  int threads;
};

Parts scratch_parts(const ProductSize& s) {
  const std::int64_t panel = std::min(s.columns, panel_width(s.columns));
  const std::int64_t depth = std::min(s.depth, cpu::kDepth);
  const std::int64_t task_rows =
      kTokenQuantum * quanta_per_task(s.rows, s.columns, s.expand_w, s.threads);
  Parts p;
  if (s.rows == 0) return p;
  if (s.expand_w) {
    p.first = s.transposed ? panel * (depth + cpu::kRowPad) : depth * (panel + cpu::kRowPad);
  }
  if (s.expand_in) p.second = std::min(s.rows, kTokenQuantum) * (depth + cpu::kRowPad);
  if (s.round_out) p.third = std::min(s.rows, task_rows) * (panel + cpu::kRowPad);
  return p;
}

ProductSize forward_size(const LinearSize& s) {
  return {.rows = s.rows,
          .columns = s.outputs,
          .depth = s.inputs,
          .transposed = true,
          .expand_w = !s.w_in_place,
          .expand_in = s.x != DType::f32,
          .round_out = s.y != DType::f32,
          .threads = s.threads};
}

ProductSize backward_size(const LinearSize& s) {
  return {.rows = s.rows,
          .columns = s.inputs,
          .depth = s.outputs,
          .transposed = false,
          .expand_w = !s.w_in_place,
          .expand_in = s.y != DType::f32,
          .round_out = s.x != DType::f32,
          .threads = s.threads};
}

Parts dw_parts(const LinearSize& s) {
  const std::int64_t rows = std::min(s.rows, kTokenQuantum);
  const auto part = [rows](std::int64_t columns, DType dtype) {
    const std::int64_t panel = std::min(columns, panel_width(columns));
    return dtype == DType::f32 ? 0 : rows * (panel + cpu::kRowPad);
  };
  return {.first = part(s.outputs, s.y), .second = part(s.inputs, s.x)};
}

bool aligned(const void* p, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

void check_rows(const ConstTensorView& v, const char* op, const char* name) {
  check(v.shape.rank() == 2, "{}: {} is {}, not a matrix", op, name, v.shape);
  check(v.dtype == DType::f32 || v.dtype == DType::bf16, "{}: {} is {}, not f32 or bf16", op, name,
        v.dtype);
  check(v.shape[1] == 1 || v.strides[1] == 1, "{}: {} {} has element stride {}", op, name, v.shape,
        v.strides[1]);
  // A row stride below the width means that rows overlap, which only a single row may pretend.
  check(v.shape[0] <= 1 || v.strides[0] >= v.shape[1], "{}: {} {} has row stride {}", op, name,
        v.shape, v.strides[0]);
  check(aligned(v.data, size_of(v.dtype)), "{}: {} does not start at a multiple of {} bytes", op,
        name, size_of(v.dtype));
}

void check_vector(const ConstTensorView& v, std::int64_t n, const char* op, const char* name) {
  check(v.elements() == n && v.contiguous(), "{}: {} is {}, expected [{}]", op, name, v.shape, n);
}

void check_weight(const ConstTensorView& w, std::int64_t outputs, std::int64_t inputs,
                  const char* op) {
  check(w.shape == Shape({outputs, inputs}), "{}: w is {}, expected [{}, {}]", op, w.shape, outputs,
        inputs);
  check(outputs > 0 && inputs > 0, "{}: w is {}", op, w.shape);
  check(inputs == 1 || w.strides[1] == 1, "{}: w has element stride {}", op, w.strides[1]);
  check(outputs == 1 || w.strides[0] >= inputs, "{}: w has row stride {}", op, w.strides[0]);
  switch (w.dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::i8:
      return;
    default:
      check(false, "{}: weights cannot be {}", op, w.dtype);
  }
}

std::int64_t row_stride(const ConstTensorView& v) {
  // BLAS wants a stride of at least the width even where there is no second row.
  return std::max(v.strides[0], v.shape[1]);
}

cpu::Matrix matrix(const ConstTensorView& v) {
  return {.data = v.data, .stride = row_stride(v), .dtype = v.dtype};
}

WeightScale weight_scale(const ConstTensorView& scale, const ConstTensorView& w, const char* op) {
  if (!scale) return {};
  const std::int64_t outputs = w.shape[0], inputs = w.shape[1];
  check(scale.dtype == DType::f32 && scale.contiguous(), "{}: the scale is {} {}", op, scale.dtype,
        scale.shape);
  if (scale.elements() == 1) return {.data = scale.data, .group = inputs};
  const std::int64_t groups = scale.elements() / outputs;
  check(scale.shape.rank() > 0 && scale.shape[0] == outputs && groups > 0 && inputs % groups == 0 &&
            (scale.shape.rank() == 1 || scale.shape[1] == groups),
        "{}: the scale {} fits no weights {}", op, scale.shape, w.shape);
  return {.data = scale.data, .row_stride = groups, .group_stride = 1, .group = inputs / groups};
}

bool in_place(const ConstTensorView& w, const ConstTensorView& scale) {
  return w.dtype == DType::f32 && !scale && aligned(w.data, 4);
}

cpu::Scratch take(const TensorView& workspace, const Parts& parts, int threads, const char* op) {
  const auto need = to_size(parts.bytes(threads));
  const std::size_t have = workspace ? workspace.bytes() : 0;
  check(have >= need, "{}: the workspace has {} bytes, {} are needed", op, have, need);
  check(need == 0 || aligned(workspace.data, kScratchAlignment),
        "{}: the workspace does not start at a multiple of {} bytes", op, kScratchAlignment);
  return parts.in(workspace);
}

std::byte* take(const TensorView& workspace, const cuda::LinearScratch& scratch, const char* op) {
  const auto need = to_size(scratch.bytes);
  const std::size_t have = workspace ? workspace.bytes() : 0;
  check(have >= need, "{}: the workspace has {} bytes, {} are needed", op, have, need);
  check(need == 0 || aligned(workspace.data, cuda::kWorkspaceAlignment),
        "{}: the workspace does not start at a multiple of {} bytes", op,
        cuda::kWorkspaceAlignment);
  return workspace.data;
}

bool in_sixteens(const ConstTensorView& v) {
  return cuda::in_sixteens(reinterpret_cast<std::uintptr_t>(v.data), v.shape[0], v.strides[0],
                           v.dtype);
}

cpu::PanelProduct panel_product(const ProductSize& s, const TensorView& workspace, const char* op) {
  return {.transposed = s.transposed,
          .expand_w = s.expand_w,
          .rows = s.rows,
          .columns = s.columns,
          .depth = s.depth,
          .panel = panel_width(s.columns),
          .quanta = quanta_per_task(s.rows, s.columns, s.expand_w, s.threads),
          .scratch = take(workspace, scratch_parts(s), s.threads, op)};
}

LinearSize size_of_call(const ConstTensorView& x, const ConstTensorView& w,
                        const ConstTensorView& scale, const ConstTensorView& y, int threads) {
  return {.rows = x.shape[0],
          .inputs = x.shape[1],
          .outputs = y.shape[1],
          .x = x.dtype,
          .y = y.dtype,
          .w_in_place = in_place(w, scale),
          .threads = threads,
          .device = x.device,
          .w = w.dtype,
          .scaled = static_cast<bool>(scale),
          .x_aligned = in_sixteens(x),
          .y_aligned = in_sixteens(y),
          .w_aligned = in_sixteens(w)};
}

int threads_of(Stream stream) { return stream.pool ? stream.pool->threads() : 1; }

void run_linear(const Linear& a, Stream stream, cuda::Doing doing) {
  check_rows(a.x, "linear", "x");
  check_rows(a.y, "linear", "y");
  const std::int64_t rows = a.x.shape[0], inputs = a.x.shape[1], outputs = a.y.shape[1];
  check(a.y.shape[0] == rows, "linear: x is {}, y is {}", a.x.shape, a.y.shape);
  check_weight(a.w, outputs, inputs, "linear");
  if (a.bias) {
    check_vector(a.bias, outputs, "linear", "bias");
    check(a.bias.dtype == DType::f32 || a.bias.dtype == DType::bf16 || a.bias.dtype == DType::f16,
          "linear: bias is {}", a.bias.dtype);
  }
  check(!(a.gelu && a.accumulate), "linear: gelu of a sum that accumulates");
  if (a.pre) {
    check_rows(a.pre, "linear", "pre");
    check(a.gelu && a.pre.shape == a.y.shape && a.pre.dtype == a.y.dtype && a.pre.data != a.y.data,
          "linear: pre is {} {}, y is {} {} {}, {} gelu", a.pre.dtype, a.pre.shape,
          a.pre.data == a.y.data ? "the same" : "another", a.y.dtype, a.y.shape,
          a.gelu ? "with" : "without");
  }
  check(a.line >= 0 && (a.line == 0 || rows % a.line == 0), "linear: {} rows in lines of {}", rows,
        a.line);
  const WeightScale scale = weight_scale(a.scale, a.w, "linear");
  const LinearSize size = linear_size(a, threads_of(stream));
  on_device(
      a.x.device,
      [&] {
        if (doing == cuda::Doing::prepare) return;
        cpu::PanelProduct p = panel_product(forward_size(size), a.workspace, "linear");
        p.in = matrix(a.x);
        p.w = matrix(a.w);
        p.scale = scale;
        p.bias = {.data = a.bias.data, .stride = outputs, .dtype = a.bias.dtype};
        p.out = a.y.data;
        p.out_stride = row_stride(a.y);
        p.out_dtype = a.y.dtype;
        p.alpha = a.alpha;
        p.accumulate = a.accumulate;
        p.gelu = a.gelu;
        p.pre = a.pre.data;
        p.pre_stride = a.pre ? row_stride(a.pre) : 0;
        p.line = a.line;
        BALLAST_ISA_CALL(cpu, panel_product, p, *stream.pool);
      },
      [&] {
        const cuda::LinearScratch scratch = cuda::forward_scratch(size);
        cuda::linear({.in = a.x,
                      .w = a.w,
                      .bias = a.bias,
                      .out = a.y,
                      .pre = a.pre,
                      .scale = scale,
                      .transposed = true,
                      .columns_at_once = cuda::columns_at_once(size, true),
                      .type = cuda::multiplied_type(size.x, size.y),
                      .alpha = a.alpha,
                      .accumulate = a.accumulate,
                      .gelu = a.gelu,
                      .one_product_for_both = cuda::one_product_for_both(size),
                      .scratch = scratch,
                      .workspace = take(a.workspace, scratch, "linear")},
                     *stream.queue, doing);
      });
}

void run_linear_dx(const LinearDx& a, Stream stream, cuda::Doing doing) {
  check_rows(a.dy, "linear_dx", "dy");
  check_rows(a.dx, "linear_dx", "dx");
  const std::int64_t rows = a.dy.shape[0], inputs = a.dx.shape[1], outputs = a.dy.shape[1];
  check(a.dx.shape[0] == rows, "linear_dx: dy is {}, dx is {}", a.dy.shape, a.dx.shape);
  check_weight(a.w, outputs, inputs, "linear_dx");
  const WeightScale scale = weight_scale(a.scale, a.w, "linear_dx");
  const LinearSize size = linear_size(a, threads_of(stream));
  on_device(
      a.dy.device,
      [&] {
        if (doing == cuda::Doing::prepare) return;
        cpu::PanelProduct p = panel_product(backward_size(size), a.workspace, "linear_dx");
        p.in = matrix(a.dy);
        p.w = matrix(a.w);
        p.scale = scale;
        p.out = a.dx.data;
        p.out_stride = row_stride(a.dx);
        p.out_dtype = a.dx.dtype;
        p.alpha = a.alpha;
        p.accumulate = a.accumulate;
        BALLAST_ISA_CALL(cpu, panel_product, p, *stream.pool);
      },
      [&] {
        const cuda::LinearScratch scratch = cuda::dx_scratch(size);
        cuda::linear({.in = a.dy,
                      .w = a.w,
                      .bias = {},
                      .out = a.dx,
                      .pre = {},
                      .scale = scale,
                      .transposed = false,
                      .columns_at_once = cuda::columns_at_once(size, false),
                      .type = cuda::multiplied_type(size.x, size.y),
                      .alpha = a.alpha,
                      .accumulate = a.accumulate,
                      .gelu = false,
                      .one_product_for_both = false,
                      .scratch = scratch,
                      .workspace = take(a.workspace, scratch, "linear_dx")},
                     *stream.queue, doing);
      });
}

void run_linear_dw(const LinearDw& a, Stream stream, cuda::Doing doing) {
  check_rows(a.x, "linear_dw", "x");
  check_rows(a.dy, "linear_dw", "dy");
  const std::int64_t rows = a.x.shape[0], inputs = a.x.shape[1], outputs = a.dy.shape[1];
  check(a.dy.shape[0] == rows, "linear_dw: x is {}, dy is {}", a.x.shape, a.dy.shape);
  check_weight(a.dw, outputs, inputs, "linear_dw");
  const bool gpu_at_once = a.at_once && a.x.device == Device::cuda;
  check(a.dw.dtype == DType::f32 || (gpu_at_once && a.dw.dtype == DType::bf16),
        "linear_dw: dw is {}", a.dw.dtype);
  check(aligned(a.dw.data, 4), "linear_dw: dw is not aligned");
  check(a.quantum > 0 && a.quantum % kTokenQuantum == 0, "linear_dw: quanta of {} rows", a.quantum);
  check(!a.overwrite || gpu_at_once, "linear_dw: overwrites at once on the GPU only");
  if (a.dbias) {
    check_vector(a.dbias, outputs, "linear_dw", "dbias");
    check(a.dbias.dtype == DType::f32 && aligned(a.dbias.data, 4), "linear_dw: dbias is {}",
          a.dbias.dtype);
  }
  const LinearSize size = linear_size(a, threads_of(stream));
  on_device(
      a.x.device,
      [&] {
        if (doing == cuda::Doing::prepare) return;
        const cpu::OuterProduct p = {
            .x = matrix(a.x),
            .dy = matrix(a.dy),
            .dw = reinterpret_cast<float*>(a.dw.data),
            .dw_stride = row_stride(a.dw),
            .dbias = reinterpret_cast<float*>(a.dbias.data),
            .rows = rows,
            .n = outputs,
            .k = inputs,
            .panel_n = panel_width(outputs),
            .panel_k = panel_width(inputs),
            .alpha = a.alpha,
            .scratch = take(a.workspace, dw_parts(size), size.threads, "linear_dw")};
        BALLAST_ISA_CALL(cpu, outer_product, p, *stream.pool);
      },
      [&] {
        const cuda::LinearScratch scratch = cuda::dw_scratch(size);
        cuda::linear_dw({.x = a.x,
                         .dy = a.dy,
                         .dw = a.dw,
                         .dbias = a.dbias,
                         .type = cuda::multiplied_type(size.x, size.y),
                         .method = a.at_once ? cuda::DwMethod::at_once : cuda::dw_method(size),
                         .overwrite = a.overwrite,
                         .quantum = a.quantum,
                         .group = cuda::dw_group(size),
                         .alpha = a.alpha,
                         .scratch = scratch,
                         .workspace = take(a.workspace, scratch, "linear_dw")},
                        *stream.queue, doing);
      });
}

}  // namespace

LinearSize linear_size(const Linear& a, int threads) {
  LinearSize size = size_of_call(a.x, a.w, a.scale, a.y, threads);
  if (a.pre && !in_sixteens(a.pre)) size.y_aligned = false;
  return size;
}
LinearSize linear_size(const LinearDx& a, int threads) {
  return size_of_call(a.dx, a.w, a.scale, a.dy, threads);
}
LinearSize linear_size(const LinearDw& a, int threads) {
  return size_of_call(a.x, a.dw, {}, a.dy, threads);
}

std::int64_t linear_workspace(const LinearSize& s) {
  if (s.device == Device::cuda) return cuda::forward_scratch(s).bytes;
  return scratch_parts(forward_size(s)).bytes(s.threads);
}
std::int64_t linear_dx_workspace(const LinearSize& s) {
  if (s.device == Device::cuda) return cuda::dx_scratch(s).bytes;
  return scratch_parts(backward_size(s)).bytes(s.threads);
}
std::int64_t linear_dw_workspace(const LinearSize& s) {
  if (s.device == Device::cuda) return cuda::dw_scratch(s).bytes;
  return dw_parts(s).bytes(s.threads);
}

void linear(const Linear& a, Stream stream) { run_linear(a, stream, cuda::Doing::run); }
void linear_dx(const LinearDx& a, Stream stream) { run_linear_dx(a, stream, cuda::Doing::run); }
void linear_dw(const LinearDw& a, Stream stream) { run_linear_dw(a, stream, cuda::Doing::run); }

void linear_prepare(const Linear& a, Stream stream) { run_linear(a, stream, cuda::Doing::prepare); }
void linear_dx_prepare(const LinearDx& a, Stream stream) {
  run_linear_dx(a, stream, cuda::Doing::prepare);
}
void linear_dw_prepare(const LinearDw& a, Stream stream) {
  run_linear_dw(a, stream, cuda::Doing::prepare);
}

}  // namespace ballast::ops
