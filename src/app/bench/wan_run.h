#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/bench/kernel_times.h"
#include "core/stopwatch.h"
#include "fit/fit.h"
#include "models/wan/dit.h"
#include "models/wan/fit_job.h"
#include "plan/checked_reads.h"
#include "plan/runner.h"

namespace ballast {

// What the process holds, and when, moment by moment.
class MemoryTimeline {
 public:
  void note(const std::string& moment);
  nlohmann::ordered_json json() const;
  std::string table() const;
  Bytes now() const { return all_.back().memory; }

 private:
  struct MemorySample {
    std::string name;
    double seconds;
    Bytes memory;
  };
  Stopwatch begin_;
  std::vector<MemorySample> all_;
};

// The job of `ballast bench wan` with its runner, loaded and with random inputs.
class WanBenchRun {
 public:
  // planned: as large as what the policy's recording comes to.
  WanBenchRun(const fit::Request& request, const MemoryPolicy& policy, const MemoryPlan& planned,
              const std::string& folder, MemoryTimeline& timeline);

  void step();
  KernelTimes kernels();  // of one more step

  std::string programs() { return programs_.table(set_, plan_, profile_); }  // and forgets them
  double stalled() const { return stalled_; }
  double read() const { return read_; }              // bytes of the disk, by the last step
  const LaneTime& disk() const { return disk_; }     // of the last step
  double read_by(const std::string& program) const;  // bytes of the disk
  CheckedReads::Cost verifying() const { return verifying_; }  // by the last step
  const MemoryPlan& plan() const { return plan_; }
  Runner& runner() { return *runner_; }
  double loss() const;

 private:
  void write_adapters();
  void write_inputs();
  void run(const std::string& program);

  MachineProfile profile_;
  MemoryTimeline& timeline_;
  ProgramTimes programs_;
  ProgramSet set_;
  std::unique_ptr<wan::Dit> dit_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
  std::int64_t steps_ = 0;
  double stalled_ = 0, read_ = 0;
  LaneTime disk_;
  CheckedReads::Cost verifying_;
  KernelTimes* collect_ = nullptr;
};

}  // namespace ballast
