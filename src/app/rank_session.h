#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/error.h"
#include "dist/control_channel.h"
#include "dist/host_memory.h"
#include "dist/rank_environment.h"

namespace ballast {

// This process as a rank of a job that the launcher started: its place, and its control channel,
// which lives from here to the end of the process's work.
class RankSession {
 public:
  // Fails where the place is of no job.
  explicit RankSession(const RankPlace& place);

  // That of this process; nullptr: it is no rank.
  static RankSession* current();
  // It lives until end().
  static void begin(const RankPlace& place);
  // finished: in order.
  static void end(bool finished);

  const RankPlace& place() const { return place_; }
  ControlChannel& channel() { return *channel_; }

  // The exit code of an error that this process ends with, once the ranks have printed why;
  // nullopt: nobody has, so this process does.
  std::optional<int> explain(const Error& error, bool shown);
  // Whether no other rank has printed this text.
  bool first_to_print(const std::string& text) { return memory_.first_to_print(text); }

 private:
  RankPlace place_;
  HostMemory memory_;
  std::unique_ptr<ControlChannel> channel_;
};

}  // namespace ballast
