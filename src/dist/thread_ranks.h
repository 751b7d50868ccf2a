#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "memory/communicator.h"

namespace ballast {

// The transport "threads": ranks are threads of one process, each with programs and memory of its
// own, and copy from each other's memory.
class ThreadRanks {
 public:
  ThreadRanks() = default;
  ThreadRanks(const ThreadRanks&) = delete;
  ThreadRanks& operator=(const ThreadRanks&) = delete;

  // Number `rank` of the `size` ranks of a group, for the thread that is that rank. It leaves the
  // group when this is destroyed: whoever needs it then fails. Must not outlive the transport.
  std::unique_ptr<Communicator> join(std::string_view group, int rank, int size);

 private:
  class Member;
  // What a rank brings to the exchange that is under way.
  struct Offer {
    std::string_view operation;
    std::size_t bytes = 0;  // of a row
    ConstTensorView rows;
  };
  struct Group;
  // Why the next phase of a group will never come; by nobody: it will.
  struct Loss {
    const Group* group = nullptr;
    int rank = 0;  // of that group
    bool aborted = false;

    explicit operator bool() const { return group != nullptr; }
  };
  struct Group {
    std::string name;
    std::vector<Offer> offers;  // by rank
    std::vector<bool> joined;
    int arrived = 0;          // in this phase
    std::uint64_t phase = 0;  // two of each exchange: all have come, all have copied
    int copying = 0;          // ranks that read the others' memory
    std::condition_variable next;
    Loss loss;

    void await_copies(std::unique_lock<std::mutex>& lock);
    void lose(const Loss& by) noexcept;
  };

  void await_all(std::unique_lock<std::mutex>& lock, Group& group, std::string_view operation);

  std::mutex mutex_;  // of everything but the ranks' memory
  std::map<std::string, std::unique_ptr<Group>, std::less<>> groups_;
  Loss aborted_;  // of all groups
};

}  // namespace ballast
