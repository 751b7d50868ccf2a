#pragma once

#include <memory>
#include <span>
#include <string>

#include "ballast/ballast.h"
#include "models/wan/dit.h"
#include "plan/runner.h"
#include "train/run/prepared_run.h"

namespace ballast::library {

// A planned run with its weights loaded.
class Session {
 public:
  // run must outlive it. `settings` is what settings_hash() gives.
  Session(const train::PreparedRun& run, fit::PlannedRun planned, std::string settings);

  v1::StepResult step(std::span<const v1::ArraySample> samples, double learning_rate);
  void predict(const v1::ArraySample& sample, double model_time, const v1::MutableArray& out);

  void save(const std::string& path);  // as run.config says it now
  std::string save_checkpoint(const std::string& folder, int keep);
  bool load_checkpoint(const std::string& folder);

  std::int64_t steps() const { return steps_; }
  v1::MemoryUse measured() const;
  // What it was planned to hold of the process.
  Bytes own_ram() const { return own_ram_; }
  // Whether another plan would run the same way.
  bool same_as(const fit::PlannedRun& planned, const fit::Request& request) const;

 private:
  void check_sample(const v1::ArraySample& s, std::size_t index) const;
  void put(const wan::DitSampleIo& io, const v1::ArraySample& s);

  const train::PreparedRun& run_;
  std::string settings_;
  Bytes own_ram_;
  ProgramSet set_;
  std::unique_ptr<wan::Dit> dit_;
  MemoryPlan plan_;
  std::unique_ptr<Runner> runner_;
  std::int64_t steps_ = 0, updates_ = 0, examples_ = 0;
};

}  // namespace ballast::library
