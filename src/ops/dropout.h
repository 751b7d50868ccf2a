#pragma once

#include <cstdint>

#include "core/random.h"
#include "core/tensor.h"
#include "ops/dropout_unit.h"
#include "ops/kernels/random_site.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// y = keep(i) x / (1 - p), or with accumulate y += that; keep(i) is 1 unless the random word of
// element i is below p 2^32. Backward is the same function of dy. Elements are counted in the whole
// tensor, whose rows from first_row on are given here, so chunks drop what the whole would drop.
// x and y are f32 or bf16 and may be the same memory; neighbouring elements along a row, any row
// stride.
struct Dropout {
  ConstTensorView x;       // [R, C]
  TensorView y;            // [R, C]
  double probability = 0;  // p in [0, 1)
  RandomSource source;
  std::int64_t first_row = 0;
  bool accumulate = false;
  DropUnit unit = DropUnit::element;
};
void dropout(const Dropout& a, Stream stream);

struct DropoutOptions {
  double probability = 0;
  RandomSite site = {};  // random_site("dropout", name, index of the sample)
  std::int64_t first_row = 0;
  bool accumulate = false;
  DropUnit unit = DropUnit::element;
};
Buffer dropout(ProgramBuilder& pb, Buffer x, const DropoutOptions& options);  // of x's dtype
void dropout_into(ProgramBuilder& pb, Buffer x, Buffer y, const DropoutOptions& options);

}  // namespace ballast::ops
