#pragma once

#include <cstdint>

#include "core/random.h"
#include "core/tensor.h"
#include "ops/kernels/random_site.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// `to` becomes elements [first, first + n) of the standard normal numbers that core/random.h
// defines for the source, bit for bit those of fill_normal. On the GPU the words are the same and
// so are all but about one in a hundred million numbers: its logarithm and sine are not those of
// the C library.
struct Noise {
  TensorView to;  // f32, contiguous
  RandomSource source;
  std::uint64_t first = 0;
};
void noise(const Noise& a, Stream stream);

// Recorded form: random_site("noise", name, index of the sample).
void noise(ProgramBuilder& pb, Buffer to, const RandomSite& site);

}  // namespace ballast::ops
