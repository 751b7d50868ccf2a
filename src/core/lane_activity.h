#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace ballast {

// What the lanes of a run are doing: for the last words of a process that crashes, so a signal
// handler may read it, and for other ranks of a job. Texts are the run's and outlive what is said
// here.
struct LaneActivity {
  std::atomic<const char*> instruction{nullptr}, program{nullptr};
  std::atomic<std::uint64_t> ended{0};  // instructions that are over
};
inline constexpr std::size_t kLaneActivities = 40;
inline std::array<LaneActivity, kLaneActivities>& lane_activities() {
  static std::array<LaneActivity, kLaneActivities> activities;
  return activities;
}

// Other threads hold it while they read texts. A run takes it once when its lanes have ended: until
// then its texts stay.
inline std::mutex& lane_texts() {
  static std::mutex texts;
  return texts;
}

// Instructions that have ended in this process.
inline std::uint64_t ended_instructions() {
  std::uint64_t all = 0;
  for (const LaneActivity& lane : lane_activities()) {
    all += lane.ended.load(std::memory_order_relaxed);
  }
  return all;
}

// In `slot` while it lives.
class ActivityScope {
 public:
  ActivityScope(std::size_t slot, const char* instruction, const char* program)
      : now_(lane_activities()[slot]) {
    now_.program.store(program, std::memory_order_relaxed);
    now_.instruction.store(instruction, std::memory_order_relaxed);
  }
  ~ActivityScope() {
    now_.instruction.store(nullptr, std::memory_order_relaxed);
    now_.ended.fetch_add(1, std::memory_order_relaxed);
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  LaneActivity& now_;
};

}  // namespace ballast
