#include "ops/conv3d/conv3d.h"

#include <algorithm>

#include "core/simd.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/add.h"
#include "ops/conv3d/conv3d_cuda.h"
#include "ops/copy.h"
#include "ops/fill.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/token_quantum.h"
#include "ops/linear/linear_scratch.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void conv_patches(const ConvPatches& a, ThreadPool& pool))
BALLAST_PER_ISA(void conv_reorder(const ConvReordering& a, ThreadPool& pool))
}  // namespace cpu

namespace {

constexpr std::int64_t kAlignment = 256;
// Patches that are multiplied at once. On the CPU enough quanta for all threads; on the GPU enough
// rows to fill it: 2304 where pixels have 1024 channels of bf16.
constexpr std::int64_t kCpuPatches = 32 << 20, kGpuPatches = 128 << 20;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Pixels of a frame that are cut into calls alike whatever comes before them; 0: all of them.
std::int64_t line_pixels(const ConvSize& s) { return s.lines * s.y[2]; }

// Rows of one frame that are multiplied in one call: whole quanta, or whole lines.
std::int64_t panel_rows(const ConvSize& s) {
  const std::int64_t row = s.geometry.row(s.x[3]) * static_cast<std::int64_t>(size_of(s.x_dtype));
  const std::int64_t most = s.device == Device::cpu ? kCpuPatches : kGpuPatches;
  const std::int64_t unit = s.lines > 0 ? line_pixels(s) : kTokenQuantum;
  const std::int64_t rows = std::max(most / row / unit, std::int64_t{1}) * unit;
  return std::min(rows, s.y[1] * s.y[2]);
}

bool direct(const ConvGeometry& g) {
  return g.taps() == 1 && g.stride == std::array{1, 1, 1} && g.spread == std::array{1, 1, 1} &&
         g.pad == std::array{0, 0, 0} && g.zoom == 1;
}

std::int64_t patch_bytes(const ConvSize& s) {
  if (direct(s.geometry)) return 0;
  return round_up(
      panel_rows(s) * s.geometry.row(s.x[3]) * static_cast<std::int64_t>(size_of(s.x_dtype)),
      kAlignment);
}

// The product of one panel; the last of a frame may be shorter.
LinearSize product_size(const ConvSize& s, std::int64_t rows) {
  const std::int64_t inputs = s.geometry.row(s.x[3]), outputs = s.y[3];
  const auto sixteens = [](std::int64_t width, DType t) {
    return width * static_cast<std::int64_t>(size_of(t)) % 16 == 0;
  };
  return {.rows = rows,
          .inputs = inputs,
          .outputs = outputs,
          .x = s.x_dtype,
          .y = s.y_dtype,
          .w_in_place = s.w == DType::f32,
          .threads = s.threads,
          .device = s.device,
          .w = s.w,
          .x_aligned = sixteens(inputs, s.x_dtype),
          // A panel of one row would be aligned whatever its width; frames start anywhere.
          .y_aligned = sixteens(outputs, s.y_dtype),
          .w_aligned = sixteens(inputs, s.w)};
}

// What of the scratch depends on rows grows with them, but alignment may differ: both ends count.
template <class F>
std::int64_t most_of_panels(const ConvSize& s, F workspace) {
  const std::int64_t frame = s.y[1] * s.y[2], panel = panel_rows(s);
  if (frame == 0) return 0;
  std::int64_t bytes = 0;
  for (const std::int64_t rows : {panel, frame % panel, std::int64_t{1}}) {
    if (rows > 0) bytes = std::max(bytes, workspace(product_size(s, rows)));
  }
  return bytes;
}

bool by_cudnn(const ConvSize& s) {
  const ConvGeometry& g = s.geometry;
  constexpr std::array kThree = {3, 3, 3}, kOne = {1, 1, 1}, kPad = {0, 1, 1};
  return s.device == Device::cuda && s.x_dtype == DType::bf16 && s.y_dtype == DType::bf16 &&
         s.w == DType::bf16 && g.kernel == kThree && g.stride == kOne && g.spread == kOne &&
         g.pad == kPad && g.zoom == 1 && s.x[3] % 8 == 0 && s.y[3] % 8 == 0 &&
         s.y[0] + 2 <= s.x[0] && s.y[1] == s.x[1] && s.y[2] == s.x[2] && s.y.elements() > 0;
}

// cuDNN's own, the bias in bf16, and where a frame is made that is added to another.
struct CudnnScratch {
  std::int64_t bias, frame, bytes;
};
CudnnScratch cudnn_scratch(const ConvSize& s) {
  CudnnScratch c;
  c.bias = cuda::kConvWorkspace;
  c.frame = c.bias + round_up(2 * s.y[3], kAlignment);
  c.bytes = c.frame + (s.accumulate ? round_up(2 * s.y[1] * s.y[2] * s.y[3], kAlignment) : 0);
  return c;
}

void check_frames(const char* what, const ConstTensorView& v) {
  check(v.shape.rank() == 4, "conv3d: {} is {}, not frames of rows of pixels", what, v.shape);
  check(v.dtype == DType::f32 || v.dtype == DType::bf16, "conv3d: {} is {}", what, v.dtype);
  ConstTensorView one = v;
  one.shape[0] = 1;
  check(one.contiguous(), "conv3d: frames of {} {} have gaps", what, v.shape);
}

void check_geometry(const ConvGeometry& g) {
  for (int i = 0; i < 3; ++i) {
    const auto at = to_size(i);
    check(g.kernel[at] >= 1 && g.stride[at] >= 1 && g.spread[at] >= 1,
          "conv3d: a kernel of no size");
  }
  check(g.kernel[0] <= ConvPatches::kMaxTime && g.zoom >= 1, "conv3d: {} taps in time, zoom {}",
        g.kernel[0], g.zoom);
}

ConstTensorView frame_of(const ConstTensorView& v, std::int64_t t) {
  ConstTensorView f = v.rows(t, 1);
  f.strides = row_major(f.shape);
  return f;
}

// A frame's pixels as rows.
template <class View>
View pixels(const View& v, std::int64_t t, std::int64_t first, std::int64_t rows) {
  const std::int64_t c = v.shape[3];
  auto* data =
      v.data + (t * v.strides[0] + first * c) * static_cast<std::int64_t>(size_of(v.dtype));
  return View(data, v.dtype, {rows, c}, v.device);
}

const std::byte* source_frame(const ConstTensorView& x, const ConstTensorView& history,
                              std::int64_t q, int spread) {
  if (q < 0) {
    const std::int64_t at = history ? history.shape[0] + q : -1;
    return at >= 0 ? frame_of(history, at).data : nullptr;
  }
  if (q % spread != 0 || q / spread >= x.shape[0]) return nullptr;
  return frame_of(x, q / spread).data;
}

TensorView part_of(const TensorView& workspace, std::int64_t from) {
  const std::int64_t all = workspace ? static_cast<std::int64_t>(workspace.bytes()) : 0;
  check(from <= all, "conv3d: the workspace has {} bytes, {} are needed", all, from);
  if (!workspace) return {};
  return TensorView(workspace.data + from, DType::u8, {all - from}, workspace.device);
}

void run_by_cudnn(const Conv3d& a, const ConvSize& s, Stream stream, bool prepare) {
  const CudnnScratch scratch = cudnn_scratch(s);
  check(a.workspace && static_cast<std::int64_t>(a.workspace.bytes()) >= scratch.bytes,
        "conv3d: the workspace has {} bytes, {} are needed", a.workspace.bytes(), scratch.bytes);
  const TensorView bias(a.workspace.data + scratch.bias, DType::bf16, {s.y[3]}, a.x.device);
  if (!prepare && a.bias) copy({.from = a.bias, .to = bias}, stream);
  if (!prepare && !a.bias) fill({.to = bias, .value = 0}, stream);
  const std::int64_t positions = s.y[1] * s.y[2];
  const TensorView made(a.workspace.data + scratch.frame, DType::bf16, {positions, s.y[3]},
                        a.x.device);
  for (std::int64_t t = 0; t < s.y[0]; ++t) {
    const TensorView y = pixels(a.y, t, 0, positions);
    cuda::convolve({.height = s.x[1],
                    .chosen_height = a.whole_height > 0 ? a.whole_height : s.x[1],
                    .width = s.x[2],
                    .channels = s.x[3],
                    .outputs = s.y[3],
                    .x = pixels(a.x, t, 0, positions).data,
                    .w = a.w.data,
                    .bias = bias.data,
                    .y = a.accumulate ? made.data : y.data,
                    .workspace = a.workspace.data},
                   *stream.queue, prepare);
    if (a.accumulate && !prepare) add_into({.x = made, .y = y}, stream);
  }
}

// f(frame t of the result, its first row, x or its patches [rows, row]) for every panel. `fill` is
// false where only the addresses matter.
template <class F>
void each_panel(const ConvSize& s, const ConstTensorView& x, const ConstTensorView& history,
                const TensorView& workspace, bool fill, Stream stream, F&& f) {
  const std::int64_t frame = s.y[1] * s.y[2], panel = panel_rows(s);
  const std::int64_t row = s.geometry.row(s.x[3]);
  const ConvGeometry& g = s.geometry;
  for (std::int64_t t = 0; t < s.y[0]; ++t) {
    for (std::int64_t first = 0; first < frame; first += panel) {
      const std::int64_t rows = std::min(panel, frame - first);
      if (direct(g)) {
        f(t, first, pixels(x, t, first, rows));
        continue;
      }
      const TensorView columns(workspace.data, s.x_dtype, {rows, row}, x.device);
      if (fill) {
        const auto size = static_cast<std::int64_t>(size_of(s.x_dtype));
        ConvPatches p = {.columns = columns.data,
                         .row_bytes = row * size,
                         .first = first,
                         .rows = rows,
                         .height = s.x[1],
                         .width = s.x[2],
                         .out_width = s.y[2],
                         .pixel_bytes = s.x[3] * size,
                         .time = g.kernel[0],
                         .kh = g.kernel[1],
                         .kw = g.kernel[2],
                         .stride_h = g.stride[1],
                         .stride_w = g.stride[2],
                         .pad_h = g.pad[1],
                         .pad_w = g.pad[2],
                         .zoom = g.zoom,
                         .spread_h = g.spread[1],
                         .spread_w = g.spread[2]};
        for (int i = 0; i < g.kernel[0]; ++i) {
          p.frame[i] = source_frame(x, history, t * g.stride[0] + i - g.pad[0], g.spread[0]);
        }
        on_device(
            x.device, [&] { BALLAST_ISA_CALL(cpu, conv_patches, p, *stream.pool); },
            [&] { cuda::conv_patches(p, stream.native); });
      }
      f(t, first, columns);
    }
  }
}

int threads_of(Stream stream) { return stream.pool ? stream.pool->threads() : 1; }

void run_conv3d(const Conv3d& a, Stream stream, bool prepare) {
  check_frames("x", a.x);
  check_frames("y", a.y);
  check_geometry(a.geometry);
  if (a.history) {
    check_frames("history", a.history);
    Shape same = a.x.shape;
    same[0] = a.history.shape[0];
    check(a.history.shape == same && a.history.dtype == a.x.dtype,
          "conv3d: history is {} {}, x is {} {}", a.history.dtype, a.history.shape, a.x.dtype,
          a.x.shape);
  }
  check(!direct(a.geometry) || a.y.shape[0] <= a.x.shape[0], "conv3d: y is {}, x is {}", a.y.shape,
        a.x.shape);
  const ConvSize size = {.x = a.x.shape,
                         .y = a.y.shape,
                         .x_dtype = a.x.dtype,
                         .y_dtype = a.y.dtype,
                         .w = a.w.dtype,
                         .geometry = a.geometry,
                         .accumulate = a.accumulate,
                         .threads = threads_of(stream),
                         .device = a.x.device,
                         .lines = a.lines};
  check(a.lines >= 0 && (a.lines == 0 || a.y.shape[1] % a.lines == 0),
        "conv3d: {} rows of pixels, cut at every {}", a.y.shape[1], a.lines);
  if constexpr (kBuiltWithCuda) {
    if (by_cudnn(size)) {
      check(!a.history && a.x.contiguous() && a.w.contiguous(), "conv3d: x or w has gaps");
      return run_by_cudnn(a, size, stream, prepare);
    }
  }
  const TensorView scratch = part_of(a.workspace, patch_bytes(size));
  each_panel(size, a.x, a.history, a.workspace, !prepare, stream,
             [&](std::int64_t t, std::int64_t first, const ConstTensorView& rows) {
               const Linear call = {.x = rows,
                                    .w = a.w,
                                    .bias = a.bias,
                                    .y = pixels(a.y, t, first, rows.shape[0]),
                                    .workspace = scratch,
                                    .accumulate = a.accumulate,
                                    .line = line_pixels(size)};
               prepare ? linear_prepare(call, stream) : linear(call, stream);
             });
}

void run_conv3d_dw(const Conv3dDw& a, Stream stream, bool prepare) {
  check_frames("x", a.x);
  check_frames("dy", a.dy);
  check_geometry(a.geometry);
  const ConvSize size = {.x = a.x.shape,
                         .y = a.dy.shape,
                         .x_dtype = a.x.dtype,
                         .y_dtype = a.dy.dtype,
                         .geometry = a.geometry,
                         .threads = threads_of(stream),
                         .device = a.x.device};
  const TensorView scratch = part_of(a.workspace, patch_bytes(size));
  each_panel(size, a.x, {}, a.workspace, !prepare, stream,
             [&](std::int64_t t, std::int64_t first, const ConstTensorView& rows) {
               const LinearDw call = {.x = rows,
                                      .dy = pixels(a.dy, t, first, rows.shape[0]),
                                      .dw = a.dw,
                                      .dbias = a.dbias,
                                      .workspace = scratch};
               prepare ? linear_dw_prepare(call, stream) : linear_dw(call, stream);
             });
}

void reorder(const ConvWeight& a, ConvReorder kind, Stream stream) {
  check(a.from.dtype == a.to.dtype && (size_of(a.to.dtype) == 2 || size_of(a.to.dtype) == 4),
        "conv weight: {} into {}", a.from.dtype, a.to.dtype);
  check(a.from.contiguous() && a.to.contiguous(), "conv weight: {} into {} with gaps", a.from.shape,
        a.to.shape);
  const std::int64_t from_rows = a.outputs,
                     to_rows = kind == ConvReorder::transpose ? a.channels : a.outputs;
  const std::int64_t inner = kind == ConvReorder::transpose ? a.outputs : a.channels;
  check(a.outputs > 0 && a.channels > 0 && a.taps > 0 && a.from.elements() % from_rows == 0 &&
            a.to.elements() % to_rows == 0 &&
            a.from.elements() / from_rows >= a.taps * a.channels &&
            a.to.elements() / to_rows >= a.taps * inner,
        "conv weight: {} into {} of {} outputs, {} channels, {} taps", a.from.shape, a.to.shape,
        a.outputs, a.channels, a.taps);
  const ConvReordering k = {.from = a.from.data,
                            .to = a.to.data,
                            .outputs = a.outputs,
                            .channels = a.channels,
                            .taps = a.taps,
                            .from_row = a.from.elements() / from_rows,
                            .to_row = a.to.elements() / to_rows,
                            .size = static_cast<int>(size_of(a.to.dtype)),
                            .kind = kind};
  on_device(
      a.to.device, [&] { BALLAST_ISA_CALL(cpu, conv_reorder, k, *stream.pool); },
      [&] { cuda::conv_reorder(k, stream.native); });
}

}  // namespace

ConvGeometry ConvGeometry::transposed() const {
  ConvGeometry g;
  for (std::size_t i = 0; i < 3; ++i) {
    g.kernel[i] = kernel[i];
    g.pad[i] = kernel[i] - 1 - pad[i];
    g.spread[i] = stride[i];
  }
  return g;
}

void conv3d(const Conv3d& a, Stream stream) { run_conv3d(a, stream, false); }
void conv3d_prepare(const Conv3d& a, Stream stream) { run_conv3d(a, stream, true); }
void conv3d_dw(const Conv3dDw& a, Stream stream) { run_conv3d_dw(a, stream, false); }
void conv3d_dw_prepare(const Conv3dDw& a, Stream stream) { run_conv3d_dw(a, stream, true); }

void pack_conv_weight(const ConvWeight& a, Stream stream) { reorder(a, ConvReorder::pack, stream); }
void unpack_conv_weight(const ConvWeight& a, Stream stream) {
  reorder(a, ConvReorder::unpack, stream);
}
void transpose_conv_weight(const ConvWeight& a, Stream stream) {
  reorder(a, ConvReorder::transpose, stream);
}

std::int64_t conv3d_workspace(const ConvSize& s) {
  if (by_cudnn(s)) return cudnn_scratch(s).bytes;
  return patch_bytes(s) +
         most_of_panels(s, [](const LinearSize& l) { return linear_workspace(l); });
}
std::int64_t conv3d_dw_workspace(const ConvSize& s) {
  return patch_bytes(s) +
         most_of_panels(s, [](const LinearSize& l) { return linear_dw_workspace(l); });
}

}  // namespace ballast::ops
