#include "app/kernel_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace ballast {

void KernelTimes::add(const Runner& runner) {
  for (const auto& [name, seconds] : runner.compute_times()) {
    auto& [sum, count] = sums_[std::string(name.substr(name.rfind('.') + 1))];
    sum += seconds;
    ++count;
  }
}

std::string KernelTimes::table() const {
  std::vector<std::pair<std::string, std::pair<double, int>>> rows(sums_.begin(), sums_.end());
  std::ranges::sort(rows, std::greater{}, [](const auto& row) { return row.second.first; });
  std::string text;
  for (const auto& [name, k] : rows) {
    text += fmt::format("  {:<28} {:9.2f} ms {:6d} x\n", name, k.first * 1e3, k.second);
  }
  return text;
}

}  // namespace ballast
