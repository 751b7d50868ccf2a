#pragma once

#include <cstdint>

namespace CLI {
class App;
}

namespace ballast {

// ballast bench kernels: what the GPU's memory-bound operations reach of what a copy reaches.
class BenchKernels {
 public:
  void declare(CLI::App& app);
  void run();

 private:
  std::int64_t tokens_ = 32760, width_ = 5120, hidden_ = 13824, parameters_ = 1 << 28;
  bool json_ = false;
};

}  // namespace ballast
