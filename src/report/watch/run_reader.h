#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "report/flight_diagnosis.h"
#include "report/flight_record.h"
#include "report/watch/folder.h"
#include "report/watch/log_follower.h"
#include "report/watch/run_summary.h"

namespace ballast {

// What a run is doing, by its flight record and what this machine knows of its process.
struct RunState {
  std::optional<FlightRecord> record;  // nullopt: none that can be read
  FlightDiagnosis diagnosis;           // of the record

  bool is_dead() const { return record && diagnosis.outcome == Outcome::died; }
  bool is_running() const { return record && diagnosis.outcome == Outcome::running; }
};

// root: as diagnose() takes it.
RunState read_run_state(const WatchedFolder& run, double now, const std::string& root = "/");
// One word: training, loading, finished, stopped, failed, dead, waiting (nothing is known yet).
std::string_view state_word(const RunState& state);
// A JSON object; secrets are not in it (the record has none).
std::string state_json(const RunState& state);

// A run's folder, read again and again.
class RunReader {
 public:
  RunReader(std::string name, WatchedFolder folder)
      : name_(std::move(name)), folder_(std::move(folder)) {}

  // Reads what the log has gained.
  void refresh();
  const std::string& name() const { return name_; }
  const WatchedFolder& folder() const { return folder_; }
  const RunSummary& summary() const { return summary_; }
  std::uint64_t offset() const { return log_.offset(); }

 private:
  std::string name_;
  WatchedFolder folder_;
  LogFollower log_;
  RunSummary summary_;
};

// The title in a run log's first line; "" where there is none.
std::string run_title(const WatchedFolder& run);

}  // namespace ballast
