#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Every element of `to` becomes value, rounded to nearest in a floating dtype; integers and bool
// take values they hold exactly. Any strides, elements between them stay as they are. Without a
// pool in the stream the calling thread does the work.
struct Fill {
  TensorView to;
  float value = 0;
};
void fill(const Fill& a, Stream stream);

// Recorded form.
void fill(ProgramBuilder& pb, Buffer b, float value, Lane lane = Lane::compute);

}  // namespace ballast::ops
