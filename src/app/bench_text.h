#pragma once

#include <cstdint>
#include <string>

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
  std::string model_ = "umt5-xxl-encoder", gpu_, ram_, folder_ = "/tmp";
  std::int64_t prompts_ = 32, tokens_ = 512, passes_ = 3;
  bool json_ = false;
};

}  // namespace ballast
