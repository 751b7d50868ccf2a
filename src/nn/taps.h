#pragma once

#include <cstdint>
#include <string>

#include "plan/program_builder.h"

namespace ballast {

// Gets named intermediate values while programs are recorded; used to locate differences from a
// reference.
class Taps {
 public:
  virtual ~Taps() = default;
  // Rows or frames of sample `sample` (-1: of all), the first of which is its row or frame `first`.
  virtual void tap(ProgramBuilder& pb, const std::string& name, int sample, Buffer values,
                   std::int64_t first) = 0;
};

}  // namespace ballast
