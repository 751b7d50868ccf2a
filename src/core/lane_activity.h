#pragma once

#include <array>
#include <atomic>
#include <cstddef>

namespace ballast {

// What the lanes of a run are doing, for the last words of a process that crashes: a signal handler
// may read it. Texts are the run's and outlive what is said here.
struct LaneActivity {
  std::atomic<const char*> instruction{nullptr}, program{nullptr};
};
inline constexpr std::size_t kLaneActivities = 40;
inline std::array<LaneActivity, kLaneActivities>& lane_activities() {
  static std::array<LaneActivity, kLaneActivities> activities;
  return activities;
}

// In `slot` while it lives.
class ActivityScope {
 public:
  ActivityScope(std::size_t slot, const char* instruction, const char* program)
      : now_(lane_activities()[slot]) {
    now_.program.store(program, std::memory_order_relaxed);
    now_.instruction.store(instruction, std::memory_order_relaxed);
  }
  ~ActivityScope() { now_.instruction.store(nullptr, std::memory_order_relaxed); }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  LaneActivity& now_;
};

}  // namespace ballast
