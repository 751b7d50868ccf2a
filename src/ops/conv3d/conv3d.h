#pragma once

#include <array>
#include <cstdint>

#include "core/tensor.h"
#include "ops/linear/linear.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Where a convolution reads. Along each axis (frames, rows, columns) tap k of output o reads the
// source at q = o * stride + k - pad. The source is the input seen larger: every pixel repeated
// zoom times in rows and columns, and along each axis spread - 1 zeros between neighbours; what
// lies outside is zero. Spread is what the gradient of a strided convolution needs.
struct ConvGeometry {
  std::array<int, 3> kernel = {1, 1, 1}, stride = {1, 1, 1}, pad = {0, 0, 0}, spread = {1, 1, 1};
  int zoom = 1;

  int taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  // Elements of a weight's row: taps, each with all channels, and zeros up to a multiple of 8, so
  // that rows start at multiples of 16 bytes. A kernel of one tap has none.
  std::int64_t row(std::int64_t channels) const {
    const std::int64_t n = taps() * channels;
    return taps() == 1 ? n : (n + 7) / 8 * 8;
  }
  // The gradient of the input is this geometry applied to the gradient of the output, with weights
  // turned round by turn_weight().
  ConvGeometry transposed() const;
};

// y[t, h, w] (+)= bias + sum over taps of W[:, tap, :] x[source of tap], channels last, frame by
// frame of y. Frames of the source before frame 0 are the last of `history`; without one, zero.
// x, y are f32 or bf16; w [N, row(C)] and bias [N] as in ops/linear/linear.h. Frames of x, history
// and y are dense, whatever lies between frames.
//
// On the GPU cuDNN computes bf16 3x3x3 convolutions of stride 1 that have all their frames in x (no
// padding in time) and zeros around rows and columns, where C and N are multiples of 8.
//
// Bits: rows of one frame are multiplied in calls whose sizes depend on the frame's size alone, so
// neither threads nor the frames that share a call change a result. With `lines` the calls are cut
// anew every so many rows of pixels: what is computed of part of an image, whole such lines of it,
// has the bits that it has in the image (away from the part's own borders, that is).
struct Conv3d {
  ConstTensorView x;             // [T, H, W, C]
  ConstTensorView history = {};  // [P, H, W, C]
  ConstTensorView w, bias = {};
  TensorView y;          // [T', H', W', N]
  TensorView workspace;  // conv3d_workspace() bytes
  ConvGeometry geometry = {};
  bool accumulate = false;
  std::int64_t lines = 0;         // rows of y
  std::int64_t whole_height = 0;  // of the image that y is a part of; cuDNN's kernel is its
};
void conv3d(const Conv3d& a, Stream stream);
void conv3d_prepare(const Conv3d& a, Stream stream);

// dw += dy^T patches(x), dbias += sums of dy; frame by frame, each quantum by quantum.
struct Conv3dDw {
  ConstTensorView x, dy;
  TensorView dw;          // [N, row(C)] f32
  TensorView dbias = {};  // [N] f32
  TensorView workspace;   // conv3d_dw_workspace() bytes
  ConvGeometry geometry = {};
};
void conv3d_dw(const Conv3dDw& a, Stream stream);
void conv3d_dw_prepare(const Conv3dDw& a, Stream stream);

// Weights as files have them, [N, C, taps], into rows of the above (w -> rows), gradients back
// (rows -> w), and rows for the gradient of the input: turned[c, taps - 1 - t, n] = rows[n, t, c].
// Rows' unused ends become zero. One dtype each.
struct ConvWeight {
  ConstTensorView from;
  TensorView to;
  std::int64_t outputs = 0, channels = 0, taps = 1;
};
void pack_conv_weight(const ConvWeight& a, Stream stream);
void unpack_conv_weight(const ConvWeight& a, Stream stream);
void transpose_conv_weight(const ConvWeight& a, Stream stream);

struct ConvSize {
  Shape x, y;  // [T, H, W, C], [T', H', W', N]
  DType x_dtype = DType::f32, y_dtype = DType::f32, w = DType::f32;
  ConvGeometry geometry = {};
  bool accumulate = false;
  int threads = 1;
  Device device = Device::cpu;
  std::int64_t lines = 0;
};
std::int64_t conv3d_workspace(const ConvSize& s);
std::int64_t conv3d_dw_workspace(const ConvSize& s);

// Recorded forms. `y` has more frames than are computed where they interleave with others: frame t
// of the result is frame y_first + t * y_step.
struct ConvOptions {
  ConvGeometry geometry = {};
  bool accumulate = false;
  std::int64_t frames = 0;  // of the result
  std::int64_t y_first = 0, y_step = 1;
  std::int64_t lines = 0, whole_height = 0;
};
void conv3d_into(ProgramBuilder& pb, Buffer x, Buffer history, const LinearWeight& w, Buffer y,
                 const ConvOptions& options);
// The gradient of the weights; frames of dy are chosen as those of y.
void conv3d_dw(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dw, Buffer dbias,
               const ConvOptions& options);
void pack_conv_weight(ProgramBuilder& pb, Buffer from, Buffer to, std::int64_t taps, Lane lane);
void unpack_conv_weight(ProgramBuilder& pb, Buffer from, Buffer to, std::int64_t taps);
// A temporary [C, row(N)] with the turned weights.
Buffer transpose_conv_weight(ProgramBuilder& pb, Buffer rows, std::int64_t channels,
                             std::int64_t taps);

}  // namespace ballast::ops
