#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/bench/random_checkpoint.h"
#include "memory/disk_file.h"
#include "models/t5/config.h"
#include "nn/machine_options.h"

namespace CLI {
class App;
}

namespace ballast {

// ballast bench text: prompts through a text encoder of random weights, streamed from its file.
class BenchText {
 public:
  void declare(CLI::App& app);
  void run();

 private:
  void measure(const RandomCheckpoint& weights, const t5::Config& config, std::int64_t prompts,
               int readers) const;

  std::string model_ = "umt5-xxl-encoder", folder_ = "/tmp";
  std::vector<std::int64_t> prompts_ = {32};
  std::vector<int> readers_ = {kDiskReaders};
  std::int64_t tokens_ = 512, passes_ = 3;
  MachineOptions machine_;
};

}  // namespace ballast
