#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "ops/linear/linear.h"
#include "ops/linear/quantize_rows.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// y = (x * x_scale) (w * w_scale)^T + bias over R rows of K inputs and N outputs, where both
// matrices are f8_e4m3 and are multiplied as they are: a GPU's fp8 units take them, the scales
// meet the finished sums. Sums are f32 (the library's "fast accumulation", which keeps fewer bits,
// stays off). There is no gradient of the rounding: backward goes through ops/linear/linear.h.
//
// On the GPU fp8 units are used where K and N are multiples of 16, y is bf16 and all rows start at
// multiples of 16 bytes; everything else is multiplied plainly. A bias is rounded to y's type
// first.
//
// Bits: as in ops/linear/linear.h, a row of y depends on its row of x alone, however rows were cut
// at multiples of kTokenQuantum.
struct Fp8Linear {
  ConstTensorView x = {};        // [R, K] f8_e4m3, any row stride
  ConstTensorView x_scale = {};  // [R] f32
  ConstTensorView w = {};        // [N, K] f8_e4m3, any row stride
  ConstTensorView w_scale = {};  // f32: none, one element, or [N] (dimensions of 1 may follow)
  ConstTensorView bias = {};     // none, or [N] f32, bf16 or f16
  TensorView y = {};             // [R, N] f32 or bf16
  TensorView workspace = {};     // fp8_linear_workspace() bytes at a multiple of 64, GPU: 256
  bool accumulate = false;       // y += instead
  bool gelu = false;             // of the sum in f32; does not accumulate
};
void fp8_linear(const Fp8Linear& a, Stream stream);
// Makes what the same call needs on the GPU and a run must not make.
void fp8_linear_prepare(const Fp8Linear& a, Stream stream);

struct Fp8LinearSize {
  std::int64_t rows = 0, inputs = 0, outputs = 0;
  DType y = DType::f32;
  Device device = Device::cpu;
  int threads = 1;
};
Fp8LinearSize fp8_linear_size(const Fp8Linear& a, int threads);
std::int64_t fp8_linear_workspace(const Fp8LinearSize& s);

// Whether this weight can be multiplied so: f8_e4m3 without a scale, or with one for all or one per
// row.
bool fp8_linear_takes(ProgramBuilder& pb, const LinearWeight& w);

// The recorded form. x: from quantize_rows(), for all layers that read the same rows.
void fp8_linear_into(ProgramBuilder& pb, const QuantizedRows& x, const LinearWeight& w, Buffer y,
                     const LinearOptions& options = {});

}  // namespace ballast::ops
