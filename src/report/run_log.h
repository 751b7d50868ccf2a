#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/append_file.h"
#include "report/memory_monitor.h"
#include "report/run_info.h"

namespace ballast {

inline constexpr std::string_view kRunLogFile = "run_log.jsonl";  // its name in a run's folder

// The run log is a text file with one JSON object per line; "kind" says which:
//   {"kind":"run","time":…,"step":0,"info":{…}}                       RunInfo, at each start
//   {"kind":"step","time":…,"step":7,"epoch":1,"loss":0.125,…}        StepRecord, each step once
//   {"kind":"eval","time":…,"step":7,"name":"eval0","loss":0.25}
//   {"kind":"score","time":…,"step":7,"name":"rouge1","value":0.5}
//   {"kind":"event","time":…,"step":7,"event":"checkpoint","text":"…"}
// Numbers are written so that they read back to the same bits; NaN and infinities are null.

// Where the seconds of one step went. compute, upload and disk are busy times of lanes that run
// side by side; waiting is what compute spent waiting for the others.
struct StepTimes {
  double compute = 0, upload = 0, disk = 0, waiting = 0, data = 0, save = 0;

  template <class Self, class Visit>
  static void each(Self& t, Visit&& visit) {
    visit("compute", t.compute);
    visit("upload", t.upload);
    visit("disk", t.disk);
    visit("waiting", t.waiting);
    visit("data", t.data);
    visit("save", t.save);
  }
  bool operator==(const StepTimes&) const = default;
};

struct StepRecord {
  double time = 0;        // seconds since 1970; 0: now, when written
  std::int64_t step = 0;  // from 1: the number of steps done with it
  std::int64_t epoch = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  double seconds = 0;
  StepTimes times;
  MemoryNumbers planned, measured;
  std::vector<std::string> samples;  // ids, in order
  std::vector<double> t;             // time value of each sample
  // Micro-batches, of a run whose speed is told in samples and batches per second; 0: of no such.
  std::int64_t batches = 0;

  bool operator==(const StepRecord&) const = default;
};

struct EvalRecord {
  double time = 0;
  std::int64_t step = 0;
  std::string name;
  double loss = 0;
};

// Of what was written or drawn in an evaluation; the higher, the better.
struct ScoreRecord {
  double time = 0;
  std::int64_t step = 0;
  std::string name;
  double value = 0;
};

struct EventRecord {
  double time = 0;
  std::int64_t step = 0;
  std::string event;  // save, checkpoint, resume, nan, signal, memory, finish, ...
  std::string text;
};

// What a log holds. Unreadable lines are left out and counted.
struct RunHistory {
  std::optional<RunInfo> info;  // of the last start
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evals;
  std::vector<ScoreRecord> scores;
  std::vector<EventRecord> events;
  std::int64_t starts = 0;
  std::int64_t unreadable = 0;
};

// Fails with ErrorCode::io where the file cannot be read; any content gives a history. Lines longer
// than 16 MiB count as unreadable. every: of the steps, only those whose number is a multiple are
// kept, so that a reader inside a memory budget holds kMaxSteps of them at most (step_stride).
RunHistory read_run_log(const std::string& path, std::int64_t every = 1);
inline constexpr std::int64_t kMaxSteps = 4096;
constexpr std::int64_t step_stride(std::int64_t steps) {
  return steps <= kMaxSteps ? 1 : (steps + kMaxSteps - 1) / kMaxSteps;
}

using LineListener = std::function<void(std::string_view line)>;

// Each call appends one line with one write. For one thread.
class RunLog {
 public:
  // What stands in an earlier log after `resumed_at` steps is cut off, and so is a last line
  // without its end: the log of a resumed run tells of each step once. 0 starts it anew.
  // listener: gets each line as well, with its end, even where the disk is full.
  RunLog(std::string path, std::int64_t resumed_at, LineListener listener = {});

  void run(const RunInfo& info, std::int64_t step = 0);
  void step(const StepRecord& record);
  void eval(std::int64_t step, std::string_view name, double loss);
  void score(std::int64_t step, std::string_view name, double value);
  void event(std::int64_t step, std::string_view event, std::string_view text);

  const std::string& path() const { return file_.path(); }
  void sync() { file_.sync(); }

 private:
  void begin(std::string_view kind, double time, std::int64_t step);
  void end();

  AppendFile file_;
  LineListener listener_;
  std::string line_;  // kept, so that a step allocates nothing once it has grown
};

}  // namespace ballast
