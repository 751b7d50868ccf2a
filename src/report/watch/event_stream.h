#pragma once

#include <string>

#include "report/watch/log_follower.h"
#include "report/watch/run_reader.h"

namespace ballast {

// What one reader of /events gets, as Server-Sent Events:
//   event: record   a line of the run log; its id is the byte behind the line
//   event: state    state_json(), when it changed, at most four a second
//   event: reset    what was read before is no longer so, or too much came meanwhile: ask /api/run
//   : a comment every 15 s
// Times are seconds on any steady clock.
class EventStream {
 public:
  // from: where the reader's knowledge of the log ends.
  EventStream(WatchedFolder run, std::uint64_t from, double now);

  // Looks at the run; true: there is something to send.
  bool poll(double now, double unix_now);
  // Up to `bytes` of it.
  std::size_t take(char* to, std::size_t bytes);
  // Of a reader that does not keep up: what it has not taken is more than 1 MiB.
  bool is_too_slow() const { return log_.behind() + waiting() > kMaxBehind; }

  static constexpr std::uint64_t kMaxBehind = 1 << 20;

 private:
  std::size_t waiting() const { return text_.size() - sent_; }
  void poll_log();
  void poll_state(double now, double unix_now);
  void reset();

  WatchedFolder run_;
  LogFollower log_;
  std::string text_;  // to be sent, from sent_ on
  std::size_t sent_ = 0;
  std::string state_;  // that was sent last
  double next_state_ = 0, next_comment_ = 0;
};

}  // namespace ballast
