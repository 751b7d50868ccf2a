#pragma once

#include <map>
#include <string>
#include <string_view>

#include "plan/profile.h"
#include "plan/runner.h"

namespace ballast {

// What takes the time of a program on a GPU, by operation. The runner must time its instructions.
class KernelTimes {
 public:
  struct Sum {
    double seconds = 0, predicted = 0;
    int count = 0;
  };
  void add(const Runner& runner);  // of its last run
  // ... and what was predicted of that program's instructions.
  void add(const Runner& runner, const ProgramSet& set, int program, const MachineProfile& profile);
  const std::map<std::string, Sum>& by_operation() const { return sums_; }
  std::string table() const;  // the longest first

 private:
  Sum& of(std::string_view instruction);
  std::map<std::string, Sum> sums_;
};

}  // namespace ballast
