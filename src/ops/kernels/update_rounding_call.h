#pragma once

#include "ops/kernels/update_rounding.h"
#include "ops/kernels/update_rounding_cuda.h"

namespace ballast::ops::cuda {

// What the checked form of an optimizer hands to its kernels.
inline ParameterRounding rounding(const ops::ParameterRounding& r) {
  ParameterRounding c;
  c.kind = r.rounding == UpdateRounding::kahan        ? ParameterRounding::kahan
           : r.rounding == UpdateRounding::stochastic ? ParameterRounding::stochastic
                                                      : ParameterRounding::nearest;
  c.carry = r.carry.data;
  c.random = random_key(r.random);
  c.first_element = static_cast<std::uint64_t>(r.first_element);
  return c;
}

}  // namespace ballast::ops::cuda
