#pragma once

#include <array>
#include <atomic>
#include <cstddef>

namespace ballast {

// What the lanes of a run are doing, for the last words of a process that crashes: a signal handler
// may read it. Texts are the run's and outlive what is said here.
struct NowRunning {
  std::atomic<const char*> instruction{nullptr}, program{nullptr};
};
inline constexpr std::size_t kRunningPlaces = 40;
inline std::array<NowRunning, kRunningPlaces>& now_running() {
  static std::array<NowRunning, kRunningPlaces> places;
  return places;
}

// In `place` while it lives.
class Running {
 public:
  Running(std::size_t place, const char* instruction, const char* program)
      : now_(now_running()[place]) {
    now_.program.store(program, std::memory_order_relaxed);
    now_.instruction.store(instruction, std::memory_order_relaxed);
  }
  ~Running() { now_.instruction.store(nullptr, std::memory_order_relaxed); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  NowRunning& now_;
};

}  // namespace ballast
