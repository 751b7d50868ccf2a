#pragma once

#include <string>

#include "memory/budget.h"
#include "nn/optimizer.h"

// Parts of a run that its advice speaks of, to compare runs by.
namespace ballast::train::advice_test {

inline std::string optimizer_facts(const OptimizerOptions& o) {
  return fmt::format("{} {} {}", name_of(o.kind), name_of(o.state_dtype),
                     static_cast<int>(o.rounding));
}
inline std::string budget_facts(const Budget& b) {
  return fmt::format("{} {} {}", b.gpu.count, b.host.count, b.disk.count);
}

}  // namespace ballast::train::advice_test
