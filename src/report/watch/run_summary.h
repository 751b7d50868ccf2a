#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/run_log.h"

namespace ballast {

// Steps that follow each other, as one point of a chart.
struct StepBucket {
  std::int64_t first = 0, last = 0, count = 0;
  double time = 0;                                              // of the last
  double loss_sum = 0, loss_least = 0, loss_most = 0;           // of the finite ones
  std::int64_t losses = 0;                                      // how many those are
  double lr = 0, norm_most = 0, seconds = 0, seconds_most = 0;  // seconds: all together
  StepTimes times;                                              // all together
  MemoryNumbers measured;                                       // the most
};

// A run log in bounded memory, however long it is: of the steps at most kMaxSteps points, of
// everything else the newest.
class RunSummary {
 public:
  void add(std::string_view line);

  const std::optional<RunInfo>& info() const { return rest_.info; }
  const std::optional<StepRecord>& last_step() const { return last_; }
  double smoothed_loss() const { return weight_ > 0 ? smooth_ / weight_ : 0; }
  double mean_step_seconds() const;  // of the last points; 0: none
  std::optional<EventRecord> checkpoint() const { return checkpoint_; }
  bool has_preview(std::string_view file) const;  // "step000200_00.mp4"
  std::int64_t starts() const { return rest_.starts; }
  std::size_t points() const { return buckets_.size(); }
  std::int64_t steps_per_point() const { return width_; }

  // Members of a JSON object, without braces: "info", "columns", "steps", "evals", ...
  void put_json(std::string& out) const;

 private:
  void add_step(const StepRecord& r);
  void halve();

  RunHistory rest_;  // without steps
  std::vector<StepBucket> buckets_;
  std::int64_t width_ = 1;
  std::optional<StepRecord> last_;
  std::optional<EventRecord> checkpoint_;
  std::vector<EventRecord> previews_;
  double smooth_ = 0, weight_ = 0;
};

}  // namespace ballast
