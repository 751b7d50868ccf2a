#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/modulation_table.h; de and dmodulation may be absent.
struct ModulationTable {
  View modulation, e, m;
  bool shared_e = false;
};
void modulation_table(const ModulationTable& a, void* stream);

struct ModulationTableBackward {
  View dm, de, dmodulation;
  bool shared_e = false;
};
void modulation_table_backward(const ModulationTableBackward& a, void* stream);

}  // namespace ballast::ops::cuda
