#pragma once

#include "ops/linear/fp8_linear.h"
#include "ops/linear/linear.h"
#include "ops/linear/lora.h"
#include "plan/program_builder.h"

namespace ballast {

// An adapter stored in the row padding of its layer's weight (docs/decisions/0021): one product
// computes the layer and its adapter. With u = x A^T behind the columns of x,
//   [x | u] [W | s B]^T = x W^T + s u B^T,   and with du = dy (s B)   [dy | du] [W ; A] = dx.
// Factors are padded with zeros to whole kRankStep: products want rows of 16 bytes.
struct AppendedAdapter {
  static constexpr std::int64_t kRankStep = 8;
  static constexpr std::int64_t padded(std::int64_t rank) {
    return (rank + kRankStep - 1) / kRankStep * kRankStep;
  }
  // Elements of a type that begin the next row at a multiple of 128 bytes again.
  static std::int64_t room(std::int64_t columns, DType dtype) {
    const auto step = 128 / static_cast<std::int64_t>(size_of(dtype));
    return (columns + step - 1) / step * step;
  }

  Buffer wide = {};          // [N + rows, K + room]: W; s B and zeros beside it, A below it
  std::int64_t columns = 0;  // beside W that are multiplied: of all layers that read the same x
  std::int64_t first = 0;    // of them: this layer's
  std::int64_t own = 0;      // padded(rank) of them
  std::int64_t inputs = 0;   // K
  std::int64_t outputs = 0;  // N

  explicit operator bool() const { return static_cast<bool>(wide); }

  Buffer all(ProgramBuilder& pb) const;    // [N, K + columns]
  Buffer up(ProgramBuilder& pb) const;     // s B [N, own]
  Buffer down(ProgramBuilder& pb) const;   // A of all layers that read the same x [columns, K]
  Buffer above(ProgramBuilder& pb) const;  // W and A below it [N + own, K]
  // Where u stands behind x, and du behind dy.
  Buffer u(ProgramBuilder& pb, Buffer x) const { return pb.row_columns(x, inputs, columns); }
  Buffer du(ProgramBuilder& pb, Buffer dy) const { return pb.row_columns(dy, outputs, own); }
  // A matrix with room behind its rows.
  static Buffer temp(ProgramBuilder& pb, const char* name, Shape shape, DType dtype,
                     std::int64_t columns);
};

// A gain vector and its gradient (invalid: frozen).
struct Gain {
  Buffer weight, dweight;
};

// y = W x + b + s B A dropout(x) with an optional adapter and optional gradients. Owns nothing.
// The adapter's part is within the layer's product where it is appended. Elsewhere it is formed
// first (ops/linear/lora.h) and the layer's own product adds to it, in backward likewise.
struct AdaptedLinear {
  ops::LinearWeight weight;
  ops::LoraWeight adapter;   // adapter.a invalid: none
  AppendedAdapter appended;  // then nothing is dropped, and of `adapter` only the scale is read
  Buffer dweight, dbias;     // invalid: frozen
  ops::LoraGrads adapter_grads;
  // The weight's gradient is one contraction over all rows (ops::linear_dw_at_once), which adds to
  // it or takes its place.
  enum class Dw : std::uint8_t { in_quanta, at_once, overwritten };
  Dw dw = Dw::in_quanta;
  std::int64_t dw_quantum = kTokenQuantum;  // see ops::LinearDw
  bool fp8 = false;  // forward multiplies in f8_e4m3; backward and the adapter as ever

  bool trains() const { return dweight || adapter_grads.da; }
  std::int64_t rank(const ProgramBuilder& pb) const;  // of the adapter; 0: none
  // Columns of u that belong to this layer.
  std::int64_t u_columns(const ProgramBuilder& pb) const {
    return appended ? appended.own : rank(pb);
  }

  // The same layer where x holds the rows from first_row on of the program's sample: what the
  // adapter's dropout depends on. Without dropout it makes no difference.
  AdaptedLinear at(std::int64_t first_row, std::int64_t sample) const;

  // What forward makes of x before it multiplies in f8_e4m3, for layers that read the same x: made
  // by one, given to all. Nothing where fp8 is off.
  ops::QuantizedRows quantized(ProgramBuilder& pb, Buffer x) const;

  // u = A dropout(x) goes into u [R, u_columns] of x's type, for backward; invalid: nobody asks for
  // it. An appended adapter wants x with room for u behind its rows, and writes it there.
  void forward(ProgramBuilder& pb, Buffer x, Buffer y, Buffer u = {},
               const ops::QuantizedRows& shared = {}) const;
  Buffer forward(ProgramBuilder& pb, Buffer x, DType y_dtype, Buffer u = {}) const;
  // y = gelu of forward: within the product if no adapter stands beside it, and then of a sum that
  // was not rounded.
  void forward_gelu(ProgramBuilder& pb, Buffer x, Buffer y) const;
  // The same where backward follows: what forward makes, rounded, goes into pre [R, N] of y's type,
  // if it is there, and u as in forward. Neither changes a bit of y. After a product in f8_e4m3,
  // which has no such second result, gelu is an operation of its own.
  void forward_gelu(ProgramBuilder& pb, Buffer x, Buffer y, Buffer pre, Buffer u) const;
  // The layer's own product alone; with an appended adapter its part too, of the u behind x.
  void multiply(ProgramBuilder& pb, Buffer x, Buffer y, const ops::LinearOptions& options,
                const ops::QuantizedRows& shared = {}) const;

  // dx (+)= W^T dy, gradients += outer products. x may be invalid when nothing trains, u when
  // forward's is gone (it is computed again), dx when the caller does not want it. An appended
  // adapter wants dy with room for du behind its rows.
  void backward(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer dx, bool accumulate,
                Buffer u = {}) const;
  // The same in two halves, for an x that is made between them. The first returns what the second
  // wants as du.
  Buffer backward_dx(ProgramBuilder& pb, Buffer dy, Buffer dx, bool accumulate) const;
  void backward_dw(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer du, Buffer u = {}) const;

 private:
  Buffer adapter_du(ProgramBuilder& pb, Buffer dy) const;
  void adapter_dw(ProgramBuilder& pb, Buffer x, Buffer dy, Buffer du, Buffer u) const;
  void dx_from(ProgramBuilder& pb, Buffer dy, Buffer du, Buffer dx, bool accumulate) const;
  void weight_dw(ProgramBuilder& pb, Buffer x, Buffer dy) const;
};

}  // namespace ballast
