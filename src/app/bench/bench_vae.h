#pragma once

#include <cstdint>
#include <string>

#include "nn/machine_options.h"

namespace CLI {
class App;
}

namespace ballast {

// ballast bench vae: a clip through one half of a Wan VAE of random weights, as `sample` and
// `cache` do it.
class BenchVae {
 public:
  void declare(CLI::App& app);
  void run();

 private:
  std::string model_ = "wan2.1-vae", part_ = "decode", folder_ = "/tmp", dtype_;
  std::int64_t height_ = 480, width_ = 832, frames_ = 81, clips_ = 1;
  std::int64_t streamed_ = 0, histories_ = 0, bands_ = 1;
  bool kernels_ = false, slices_ = false;
  MachineOptions machine_;
};

}  // namespace ballast
