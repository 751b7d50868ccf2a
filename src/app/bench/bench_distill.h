#pragma once

#include <cstdint>
#include <string>

#include "models/student/fit_job.h"
#include "nn/machine_options.h"

namespace CLI {
class App;
}

namespace ballast {

// ballast bench distill: a teacher of random weights and a student, planned and run as `ballast
// distill` does it, and what was planned and predicted beside what was measured.
class BenchDistill {
 public:
  void declare(CLI::App& app);
  void run();

 private:
  fit::Request request() const;  // without the teacher's weights

  std::string model_ = "14B", student_, placement_ = "host", weights_ = "bf16";
  std::string folder_ = "/tmp", student_dtype_;
  std::int64_t batch_ = 1, runs_ = 1, steps_ = 5, layers_ = 0;
  bool recompute_ = false, two_programs_ = false, kernels_ = false;
  MachineOptions machine_;
};

}  // namespace ballast
