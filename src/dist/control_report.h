#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dist/control_frames.h"
#include "dist/host_memory.h"

namespace ballast {

using ControlTime = std::chrono::steady_clock::time_point;

// What one rank knows of another, or of itself.
struct ControlPeer {
  enum class State : std::uint8_t {
    expected,  // it has not come yet
    here,
    left,  // it said that it has finished
    gone,  // its connection closed without that
  };

  State state = State::expected;
  ControlHello hello;
  ControlHeartbeat beat;
  std::optional<ControlFailure> failure;
  ControlTime heard, advanced;  // its last word; when it last told of progress
  ControlTime told;             // of the failure, or of the end of its connection

  bool accounted() const { return failure || state == State::left || state == State::gone; }
};

// Where the end of a job began.
struct ControlCause {
  enum class Kind : std::uint8_t {
    failed,  // with an Error
    gone,    // its process ended
    silent,  // no word from it, though its connection stands
    hung,    // it answers, and nobody advances
    absent,  // it never came
    parted,  // ranks lost each other, and nobody says more
  };

  Kind kind = Kind::parted;
  int rank = 0;
  double seconds = 0;  // of silence, of no progress, of waiting for it
};

// The earliest one: an error that was told, or an end without one. Errors that say no more than
// that another rank is gone count where there is nothing else. nullopt: nothing has happened.
std::optional<ControlCause> find_cause(std::span<const ControlPeer> peers);

// What else the report says.
struct ControlFindings {
  std::string command;                     // as typed, without secrets; empty: not known
  std::optional<RankLoss> end;             // of the cause's process, where the launcher knows
  bool stopped = false;                    // its process is stopped, not running
  std::optional<std::uint64_t> oom_kills;  // in its control group since the start
};

// The report of a job; `whole` is for the one who sends it.
ControlReport make_report(const ControlCause& cause, std::span<const ControlPeer> peers,
                          const ControlFindings& findings);

// Who prints the whole report: of the ranks that share one terminal or file, the first that
// `hears`.
std::vector<bool> choose_printers(std::span<const ControlPeer> peers,
                                  const std::vector<bool>& hears);

// Who has what, where ranks differ; "": all have the same.
std::string table_of_differences(std::span<const ControlFacts> ranks);

}  // namespace ballast
