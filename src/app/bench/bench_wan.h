#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "app/bench/bench_wan_result.h"
#include "app/bench/bench_wan_run.h"
#include "fit/fit.h"
#include "models/wan/fit_job.h"
#include "nn/machine_options.h"

namespace CLI {
class App;
}

namespace ballast {

// ballast bench wan: plans and runs the real programs on random weights, and prints what was
// planned and predicted beside what was measured.
class BenchWan {
 public:
  void declare(CLI::App& app);
  void run();

 private:
  fit::Request request() const;
  MemoryPolicy policy(const fit::Request& r) const;

  using DiskAlone = std::function<double()>;  // bytes per second; 0: nothing is read from it
  WanBenchResult described(const fit::Request& r) const;  // what is known before anything runs
  void add_first_step(WanBenchResult& result, const WanBenchRun& bench,
                      const DiskAlone& disk_alone) const;
  void time_steps(WanBenchResult& result, WanBenchRun& bench, const DiskAlone& disk_alone) const;
  void add_plan(WanBenchResult& result, const fit::PlannedRun& planned, WanBenchRun& bench) const;

  std::string model_ = "14B", mode_ = "infer", stream_ = "0", from_ = "host", weights_ = "bf16";
  std::string activations_ = "attention-kept", folder_ = "/tmp", file_;
  std::int64_t tokens_ = 7168, rank_ = 16, batch_ = 1, slots_ = 2, matrices_ahead_ = 0, steps_ = 5,
               heads_ = 0;
  std::int64_t chunk_ = 0, kept_ = 0, disk_groups_ = 0;
  double disk_trial_ = 1.5;
  bool auto_ = false, offload_ = false, kernels_ = false;
  bool state_on_host_ = false, fp8_matmul_ = false, split_backward_ = false;
  MachineOptions machine_;
};

}  // namespace ballast
