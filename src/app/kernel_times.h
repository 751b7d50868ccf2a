#pragma once

#include <map>
#include <string>
#include <utility>

#include "plan/runner.h"

namespace ballast {

// What takes the time of a program on a GPU, by operation. The runner must time its instructions.
class KernelTimes {
 public:
  void add(const Runner& runner);  // of its last run
  // Seconds and how many instructions.
  const std::map<std::string, std::pair<double, int>>& by_operation() const { return sums_; }
  std::string table() const;  // the longest first

 private:
  std::map<std::string, std::pair<double, int>> sums_;
};

}  // namespace ballast
