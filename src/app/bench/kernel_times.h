#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "plan/memory_plan.h"
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
  std::string table() const;  // the longest first
  nlohmann::ordered_json json() const;

 private:
  Sum& of(std::string_view instruction);
  std::map<std::string, Sum> sums_;
};

// Of one more step, whose programs add themselves to `collect` meanwhile.
KernelTimes kernels_of(Runner& runner, KernelTimes*& collect, const std::function<void()>& step);

// What each program takes.
class ProgramTimes {
 public:
  void add(const std::string& program, double seconds, double stalled);  // of one run
  // Mean times since the last table, and what is predicted.
  std::string table(const ProgramSet& set, const MemoryPlan& plan, const MachineProfile& profile);

 private:
  struct Sum {
    double seconds = 0, stalled = 0;
    int count = 0;
  };
  std::map<std::string, Sum> sums_;
};

}  // namespace ballast
