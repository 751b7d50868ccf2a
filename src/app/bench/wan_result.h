#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app/bench/kernel_times.h"
#include "app/bench/memory_use.h"
#include "plan/checked_reads.h"
#include "plan/runner.h"

namespace ballast {

// What `ballast bench wan` measured, beside what was planned and predicted.
struct WanBenchResult {
  // From the start of the program, without what no user's run does.
  struct FirstStep {
    double planned = 0, loaded = 0, done = 0;  // seconds
    double read = 0;                           // bytes, with those of loading
    LaneTime reading;                          // of the disk's threads, in the step
    double disk_before = 0, disk_around = 0;   // bytes per second of the disk alone
    double predicted_step = 0;                 // seconds of a step with disk_before
  };
  // Of the timed steps; sorted once all are there.
  struct Steps {
    std::vector<double> seconds, stalls;
    std::vector<double> disk_alone;   // bytes per second around each step
    std::vector<double> disk_ratios;  // what a step took of what the disk alone would

    void sort();
  };

  std::string model, mode, policy, verify_weights;
  std::int64_t tokens = 0, batch = 1;
  bool fp8_matmul = false;
  FirstStep first;
  Steps steps;
  double flops = 0, predicted = 0, loss = 0;  // of a step
  MemoryUse memory;
  std::uint64_t weights_file = 0;  // bytes
  double read = 0;                 // bytes of the disk, by each step
  int readers = 1;                 // reads at once
  LaneTime reading;                // of the last step's
  CheckedReads::Cost verifying;    // likewise
  Runner::Opening opening;
  nlohmann::ordered_json host_by_moment;
  std::string timeline, programs;  // tables
  std::optional<KernelTimes> kernels;

  nlohmann::ordered_json json() const;
  std::string text() const;     // a few lines
  std::string details() const;  // tables by program, operation and moment

 private:
  std::string disk_text() const;
};

}  // namespace ballast
