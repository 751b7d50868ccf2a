#pragma once

#include <string>

namespace CLI {
class App;
}

namespace ballast {

// ballast bench machine: measures the rates that time is predicted from and stores them
// (train/run/measured_profile.h).
class BenchMachine {
 public:
  void declare(CLI::App& app);
  void run();

 private:
  std::string folder_ = ".";
  double seconds_ = 2;
  bool json_ = false, dry_ = false;
};

}  // namespace ballast
