#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/stopwatch.h"
#include "memory/file_descriptor.h"
#include "report/memory_monitor.h"

namespace ballast {

// What a run was doing, kept on disk while it does it: a few KB, memory-mapped, so that an update
// costs no system call that waits and the kernel has it even after a kill -9.
//
// Layout: a header that is written once, then two slots that are written in turn, each with a
// sequence number and a CRC-32C. A process that dies while it writes one leaves the other.

inline constexpr std::string_view kFlightFile = "flight_record";  // its name in a run's folder

enum class Phase : std::uint32_t {
  starting,
  load,
  step,
  update,
  save,
  evaluate,
  finished,  // all steps done
  stopped,   // ended early on request: a signal, a NaN
  failed,    // ended with an error, which is in the note
};
inline constexpr int kPhases = 9;
std::string_view name_of(Phase p);
constexpr bool is_end(Phase p) { return p >= Phase::finished; }

// Said once.
struct FlightStart {
  std::string command;  // as typed, without secrets
  std::string folder;   // of the run
  std::int64_t total_steps = 0;
  MemoryNumbers planned, allowed;  // allowed 0: not bounded
  int rank = 0, ranks = 1;         // of the job; rank 0 writes kFlightFile
};

// Said again and again.
struct FlightState {
  Phase phase = Phase::starting;
  std::int64_t step = 0;  // steps done
  std::int64_t epoch = 0;
  double loss = 0;
  MemoryNumbers measured, most;  // now, and over the run
};

// Writes the record of this process. A failure that was recorded stays. By any thread.
class FlightRecorder {
 public:
  // Replaces what stands at `path`; the space is taken at once, so that a full disk shows here and
  // not as a signal later. Fails with ErrorCode::io. root stands for "/" in tests, now for the
  // time.
  FlightRecorder(const std::string& path, const FlightStart& start,
                 const std::filesystem::path& root = "/",
                 Clock now = std::chrono::steady_clock::now);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Allocates nothing, about 1 us; ten times a second it also asks how much memory the machine has
  // left. note: up to 240 bytes, kept until the next one that is not empty.
  void update(const FlightState& state, std::string_view note = {});
  void phase(Phase phase, std::string_view note = {});  // the rest as it was

 private:
  void refresh_available();
  void write(const FlightState& state, std::string_view note);

  std::mutex mutex_;
  const Clock now_;
  std::byte* map_ = nullptr;
  FileDescriptor fd_;  // its lock tells readers that this process lives
  FlightState state_;
  std::uint64_t sequence_ = 0;
  std::uint64_t available_ = 0;
  std::optional<Stopwatch> since_available_;  // from when it was read
  char note_[240] = {};
};

// A record as it was read.
struct FlightRecord {
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;  // of the process, since boot: no two processes share pid and this
  double started = 0;             // seconds since 1970
  double started_since_boot = 0;  // seconds
  std::string boot_id, host;
  FlightStart start;
  std::string group;  // directory of the memory control group; empty: none seen
  std::optional<Bytes> group_limit, ram;
  std::optional<std::uint64_t> group_oom_kills, system_oom_kills;  // at the start

  FlightState state;
  double updated = 0;              // seconds since 1970
  std::optional<Bytes> available;  // that the machine and the group had left then
  std::string note;
  bool torn = false;    // the newest update was not finished; this is the one before
  bool locked = false;  // the process that writes it lives
};

// ErrorCode::io where it cannot be read, ErrorCode::input where it is no whole flight record.
// lock_tries: how often a lock whose process cannot be seen is looked at, 25 ms apart.
FlightRecord read_flight_record(const std::string& path, int lock_tries = 20);

}  // namespace ballast
