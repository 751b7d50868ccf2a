#pragma once

#include <string>
#include <vector>

#include "plan/program_builder.h"

namespace ballast {

struct NamedGradient {
  std::string name;  // of the parameter
  Buffer gradient;   // the parameter's shape; f32, or what the job asks for; device or host
};

// Gradients of one group and where they wait.
struct GroupGradients {
  std::vector<Buffer> persistent;  // persistent, on the device or the host
  std::vector<Buffer> device;      // where backward adds to them: the same, or a temporary
};

}  // namespace ballast
