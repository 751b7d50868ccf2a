#pragma once

#include <cstdint>
#include <string>

#include "fit/advice.h"
#include "models/t5/fit_job.h"
#include "nn/machine_options.h"

namespace CLI {
class App;
}

namespace ballast {

// ballast bench t5: plans and runs training steps of the encoder-decoder on random weights, and
// prints what was planned and predicted beside what was measured.
class BenchT5 {
 public:
  void declare(CLI::App& app);
  void run();

 private:
  fit::Request request() const;
  MemoryPolicy policy(const t5::Config& config) const;

  std::string model_ = "flan-t5-xl", activations_ = "kept", optimizer_ = "adamw";
  std::string timeline_ = "bf16", gradients_ = "bf16", rounding_ = "stochastic";
  std::string folder_ = "/tmp";
  std::int64_t batch_ = 8, source_ = 512, target_ = 256, micro_batches_ = 1, steps_ = 5;
  std::int64_t stream_ = 0, slots_ = 2, matrices_ahead_ = 0, kept_ = 0, heads_ = 0, chunk_ = 0;
  double dropout_ = 0;
  bool auto_ = false, offload_ = false, master_ = false, kernels_ = false;
  MachineOptions machine_;
};

}  // namespace ballast
