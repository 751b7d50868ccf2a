#include <algorithm>

#include "core/error.h"
#include "ops/conv3d/conv3d.h"
#include "ops/linear/linear_scratch.h"
#include "plan/bindings.h"

namespace ballast::ops {
namespace {

// The frames of b that the options choose.
template <class View>
View chosen(View v, const ConvOptions& o) {
  v = v.rows(o.y_first, v.shape[0] - o.y_first);
  v.strides[0] *= o.y_step;
  v.shape[0] = o.frames;
  return v;
}

ConvSize recorded_size(ProgramBuilder& pb, Buffer x, Buffer y, DType w, const ConvOptions& o) {
  check(o.frames > 0 && o.y_first + (o.frames - 1) * o.y_step < pb.shape(y)[0],
        "conv3d: {} frames from {} by {} of {}", o.frames, o.y_first, o.y_step, pb.shape(y));
  Shape out = pb.shape(y);
  out[0] = o.frames;
  return {.x = pb.shape(x),
          .y = out,
          .x_dtype = pb.dtype(x),
          .y_dtype = pb.dtype(y),
          .w = w,
          .geometry = o.geometry,
          .accumulate = o.accumulate,
          .threads = pb.backend().threads,
          .device = pb.backend().device,
          .lines = o.lines};
}

// How much longer a GPU takes for a convolution of so few channels than for a product of as many
// operations: a curve through both points that an H200 gave in bf16, 225 TFLOP/s for a decoder of
// 96 to 384 channels (Wan2.1), 477 for one of 256 to 1,024 (Wan2.2).
double narrowness(const ConvSize& s) {
  if (s.device != Device::cuda) return 1;
  constexpr std::int64_t kMin = 32;  // nothing is known of fewer
  const auto channels = static_cast<double>(std::max(kMin, s.x[3]));
  return 1 + 114 / channels + 22600 / (channels * channels);
}

Cost cost_of(const ConvSize& s) {
  return {.work = cuda::product_work(s.device, s.x_dtype, s.y_dtype),
          .flops = narrowness(s) * 2.0 * static_cast<double>(s.y.elements()) *
                   static_cast<double>(s.geometry.row(s.x[3]))};
}

}  // namespace

void conv3d_into(ProgramBuilder& pb, Buffer x, Buffer history, const LinearWeight& w, Buffer y,
                 const ConvOptions& o) {
  const ConvSize size = recorded_size(pb, x, y, pb.dtype(w.weight), o);
  const Buffer workspace = pb.workspace(conv3d_workspace(size));
  const auto call = [=](const Bindings& b) {
    return Conv3d{.x = b.in(x),
                  .history = b.in_if(history),
                  .w = b.in(w.weight),
                  .bias = b.in_if(w.bias),
                  .y = chosen(b.out(y), o),
                  .workspace = b.out_if(workspace),
                  .geometry = o.geometry,
                  .accumulate = o.accumulate,
                  .lines = o.lines,
                  .whole_height = o.whole_height};
  };
  pb.emit(
      "conv3d",
      {.reads = {x, history, w.weight, w.bias, o.accumulate ? y : Buffer()},
       .writes = {y, workspace},
       .cost = cost_of(size)},
      [=](const Bindings& b) { conv3d(call(b), b.stream()); },
      [=](const Bindings& b) { conv3d_prepare(call(b), b.stream()); });
}

void conv3d_dw(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dw, Buffer dbias,
               const ConvOptions& o) {
  const ConvSize size = recorded_size(pb, x, dy, DType::f32, o);
  const Buffer workspace = pb.workspace(conv3d_dw_workspace(size));
  const auto call = [=](const Bindings& b) {
    return Conv3dDw{.x = b.in(x),
                    .dy = chosen(b.in(dy), o),
                    .dw = b.out(dw),
                    .dbias = b.out_if(dbias),
                    .workspace = b.out_if(workspace),
                    .geometry = o.geometry};
  };
  pb.emit(
      "conv3d_dw",
      {.reads = {x, dy, dw, dbias}, .writes = {dw, dbias, workspace}, .cost = cost_of(size)},
      [=](const Bindings& b) { conv3d_dw(call(b), b.stream()); },
      [=](const Bindings& b) { conv3d_dw_prepare(call(b), b.stream()); });
}

void pack_conv_weight(ProgramBuilder& pb, Buffer from, Buffer to, std::int64_t taps, Lane lane) {
  const std::int64_t outputs = pb.shape(from)[0],
                     channels = pb.shape(from).elements() / outputs / taps;
  pb.emit("pack_conv_weight", {.reads = {from}, .writes = {to}, .lane = lane},
          [=](const Bindings& b) {
            pack_conv_weight({.from = b.in(from),
                              .to = b.out(to),
                              .outputs = outputs,
                              .channels = channels,
                              .taps = taps},
                             b.stream());
          });
}

void unpack_conv_weight(ProgramBuilder& pb, Buffer from, Buffer to, std::int64_t taps) {
  const std::int64_t outputs = pb.shape(to)[0], channels = pb.shape(to).elements() / outputs / taps;
  pb.emit("unpack_conv_weight", {.reads = {from}, .writes = {to}}, [=](const Bindings& b) {
    unpack_conv_weight({.from = b.in(from),
                        .to = b.out(to),
                        .outputs = outputs,
                        .channels = channels,
                        .taps = taps},
                       b.stream());
  });
}

Buffer transpose_conv_weight(ProgramBuilder& pb, Buffer rows, std::int64_t channels,
                             std::int64_t taps) {
  const std::int64_t outputs = pb.shape(rows)[0];
  const std::int64_t row = taps == 1 ? outputs : (taps * outputs + 7) / 8 * 8;
  const Buffer to = pb.temp("turned", {channels, row}, pb.dtype(rows));  // [C, taps N]
  pb.emit("transpose_conv_weight", {.reads = {rows}, .writes = {to}}, [=](const Bindings& b) {
    transpose_conv_weight({.from = b.in(rows),
                           .to = b.out(to),
                           .outputs = outputs,
                           .channels = channels,
                           .taps = taps},
                          b.stream());
  });
  return to;
}

}  // namespace ballast::ops
