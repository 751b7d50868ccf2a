#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "dist/control_report.h"
#include "dist/host_memory.h"

namespace ballast {

struct ControlOptions {
  int rank = 0, ranks = 1;
  std::string token;  // of the job

  std::chrono::milliseconds heartbeat{250};
  std::chrono::milliseconds gather{300};   // how long rank 0 waits for what others have to say
  std::chrono::milliseconds hang{60000};   // without progress, and without a word
  std::chrono::milliseconds join{120000};  // until all ranks are there
  // From the report until a rank ends whose own thread does not come to its end.
  std::chrono::milliseconds unwind{400};
  std::chrono::milliseconds last{1900};  // from the first word until a rank ends in any case

  // Of the lane activities (core/lane_activity.h): the one that exchanges bytes with other ranks.
  std::size_t network_lane = SIZE_MAX;
  // Instructions that have ended in this process; empty: those of the lane activities.
  std::function<std::uint64_t()> progress = {};
  // How a rank's process ended, where the launcher of this host knows.
  std::function<std::optional<RankLoss>(int rank)> end_of = {};
  // The job ends: whoever waits in an exchange is to wake up.
  std::function<void(const ControlReport& report)> on_report = {};
  // What users read of an error's message; empty: as it is.
  std::function<std::string(std::string_view)> words = {};
  // Ends this process; the default is _exit().
  std::function<void(int code)> end = {};
};

// The small connection among all ranks of a job, beside the transport: a thread in each rank with
// sockets of its own. It tells the others where this rank is, hears where they are, and when one is
// lost it sees to it that all ranks say why and end, none later than `last` after the first word.
//
// Rank 0 is the coordinator, rank 1 the standby coordinator: all ranks connect to both. Each hears
// heartbeats, failures and ends; the coordinator finds the earliest cause and sends one report to
// all. Where it is silent or gone, the standby coordinator does, and without both each rank for
// itself.
class ControlChannel {
 public:
  // Fails with ErrorCode::device where the system gives no thread or socket.
  explicit ControlChannel(ControlOptions options);
  // Closes the connections. Without finish() before it, other ranks take this one for lost.
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  // RAM that it takes in each rank.
  static Bytes memory_for(int ranks);

  // Where this rank is; allocates nothing. Its progress, lanes and longest instruction are added.
  void set_state(const ControlHeartbeat& state) noexcept;
  // Of the longest instruction, predicted: a lane may be busy for as long.
  void set_longest(double seconds) noexcept;
  void set_command(std::string command);  // as typed, without secrets
  // Called once, by the channel's thread, when the report is there; empty: nobody.
  void set_last_words(std::function<void(const ControlReport&)> words);

  using Facts = std::vector<std::pair<std::string, std::string>>;
  // All ranks call it with their facts. Fails on all ranks alike with ErrorCode::input and a table
  // of who has what where they differ, and with ErrorCode::lost where a rank is.
  void require_same(const Facts& facts);

  // This rank cannot go on: told once, the first counts. shown: it has printed why.
  void tell(const Error& error, bool shown = false) noexcept;
  // The report, once it is printed; nullopt: it did not come.
  std::optional<ControlReport> await_report();
  // This rank has finished in order, and takes part in nothing any more.
  void finish() noexcept;

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace ballast
