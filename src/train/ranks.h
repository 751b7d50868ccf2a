#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "dist/control_channel.h"
#include "memory/communicator.h"

namespace ballast::train {

// The ranks that train together, as one of them sees them. The first one leads: it writes the
// run's folder and draws previews; the others only train.
struct Ranks {
  int rank = 0, size = 1;
  // Of a group in which this rank has that number. What it returns and what that needs must outlive
  // the run.
  std::function<std::unique_ptr<Communicator>(std::string_view group, int rank, int size)> join =
      {};

  // What rank 0 says, on all ranks.
  std::function<std::string(const std::string& text)> share = {};
  ControlChannel* control = nullptr;  // of this rank; outlives the run

  // Fails on all ranks alike where they do not have the same.
  void require_same(const ControlChannel::Facts& facts) const {
    if (control != nullptr) control->require_same(facts);
  }
  bool leads() const { return rank == 0; }
};

}  // namespace ballast::train
