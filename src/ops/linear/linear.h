#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "ops/kernels/token_quantum.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Linear layers over R rows: K inputs, N outputs. Sums are kept in f32 whatever the types.
//
// x, dx: [R, K], y, dy: [R, N], f32 or bf16; any row stride, neighbouring elements along a row.
// w: [N, K] f32, bf16, f16, f8_e4m3, f8_e5m2 or i8, starting at any address, any row stride.
// scale: empty, 1 element, [N], or [N, G] for G groups of K / G inputs (trailing dimensions of 1
// may
//   follow), f32: the weight is w * scale, formed in f32.
// bias: empty or [N] f32, bf16 or f16, at any address.
// workspace: at least linear_workspace() bytes at a multiple of 64, on the GPU of 256; may be empty
//   when that is 0.
//
// On the GPU a product with a bf16 operand (x, w or y) multiplies bf16: its other operands, and the
// bias of a bf16 y, are rounded to that first. Products without one multiply f32.
//
// Bits: on the CPU every product is computed by calls of fixed sizes, kTokenQuantum rows counted
// from row 0 and panels of columns that depend on K and N alone; on the GPU by an algorithm that
// adds along the contraction in the same order for any number of rows. So neither threads, nor
// strides, nor cutting the rows at multiples of kTokenQuantum into several calls change a result.

// y = alpha * x W^T + bias, or with accumulate y += alpha * x W^T + bias; with gelu, which does not
// accumulate, y = gelu(alpha * x W^T + bias) of the sum in f32, as ops/gelu.h defines it.
struct Linear {
  ConstTensorView x = {}, w = {}, scale = {}, bias = {};
  TensorView y = {}, workspace = {};
  float alpha = 1;
  bool accumulate = false;
  bool gelu = false;
  // Of gelu alone, or none: [R, N] of y's type that gets the sum which y is the gelu of, rounded.
  // It has the bits of a y without gelu, and y those of a call without it.
  TensorView pre = {};
  // On the CPU calls are cut anew every so many rows, of which there is a whole number, into equal
  // pieces of at most a quantum; 0: cut at multiples of a quantum.
  std::int64_t line = 0;
};

// dx = alpha * dy W, or with accumulate dx += alpha * dy W.
struct LinearDx {
  ConstTensorView dy = {}, w = {}, scale = {};
  TensorView dx = {}, workspace = {};
  float alpha = 1;
  bool accumulate = false;
};

// dw += alpha * dy^T x;  dbias += alpha * column sums of dy. Both add up quantum by quantum.
struct LinearDw {
  ConstTensorView x = {}, dy = {};
  TensorView dw = {};     // [N, K] f32, any row stride; at_once on the GPU also bf16
  TensorView dbias = {};  // [N] f32, or empty
  TensorView workspace = {};
  float alpha = 1;
  // Rows of a product of dw where the GPU makes one after the other: kTokenQuantum, or a multiple
  // of it at whose multiples every policy cuts.
  std::int64_t quantum = kTokenQuantum;
  // For rows that no policy cuts. On the GPU dw gets one product over all rows, four times as fast
  // as quantum by quantum, and may be bf16; on the CPU nothing changes.
  bool at_once = false;
  bool overwrite = false;  // dw = instead of dw +=; at_once on the GPU only
};

void linear(const Linear& a, Stream stream);
void linear_dx(const LinearDx& a, Stream stream);
void linear_dw(const LinearDw& a, Stream stream);

// Make what the same call needs on the GPU and a run must not make; on the CPU that is nothing.
void linear_prepare(const Linear& a, Stream stream);
void linear_dx_prepare(const LinearDx& a, Stream stream);
void linear_dw_prepare(const LinearDw& a, Stream stream);

// What decides how much scratch a call needs.
struct LinearSize {
  std::int64_t rows = 0, inputs = 0, outputs = 0;
  DType x = DType::f32, y = DType::f32;  // or of dx and dy
  bool w_in_place = true;  // f32 weights that have no scale and start at a multiple of 4 bytes
  int threads = 1;
  // What matters on the GPU alone.
  Device device = Device::cpu;
  DType w = DType::f32;
  bool scaled = false;  // the weights have a scale
  bool x_aligned = true,
       y_aligned = true;  // every row (and of pre) starts at a multiple of 16 bytes
  bool w_aligned = true;  // of w, or of dw
};
LinearSize linear_size(const Linear& a, int threads);
LinearSize linear_size(const LinearDx& a, int threads);
LinearSize linear_size(const LinearDw& a, int threads);
std::int64_t linear_workspace(const LinearSize& s);
std::int64_t linear_dx_workspace(const LinearSize& s);
std::int64_t linear_dw_workspace(const LinearSize& s);

struct LinearWeight {
  Buffer weight = {}, bias = {}, scale = {};  // bias and scale may be invalid
};
struct LinearOptions {
  float alpha = 1;
  bool accumulate = false;
  bool gelu = false;  // of linear_into alone
  Buffer pre = {};    // see Linear
};

// Recorded forms. Those that return a Buffer make it: [R, N] or [R, K] of the given type.
Buffer linear(ProgramBuilder& pb, Buffer x, const LinearWeight& w, DType y_dtype);
void linear_into(ProgramBuilder& pb, Buffer x, const LinearWeight& w, Buffer y,
                 LinearOptions options = {});
Buffer linear_dx(ProgramBuilder& pb, Buffer dy, const LinearWeight& w, DType dx_dtype);
void linear_dx_into(ProgramBuilder& pb, Buffer dy, const LinearWeight& w, Buffer dx,
                    LinearOptions options = {});
void linear_dw(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dw, Buffer dbias, float alpha = 1,
               std::int64_t quantum = kTokenQuantum);
// With LinearDw::at_once; dw is f32 or bf16 and is added to unless it is to be overwritten.
void linear_dw_at_once(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dw, bool overwrite);

}  // namespace ballast::ops
