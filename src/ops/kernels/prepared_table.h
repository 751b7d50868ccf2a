#pragma once

#include <map>
#include <mutex>
#include <utility>

namespace ballast::ops {

// What was prepared, each once, for calls that come again and again: one thread may add to it while
// another runs what is there.
template <class Call, class Prepared>
class PreparedTable {
 public:
  const Prepared* find(const Call& call) const {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(call);
    return found != all_.end() ? &found->second : nullptr;
  }
  const Prepared& add(const Call& call, Prepared prepared) {
    const std::lock_guard lock(mutex_);
    return all_.emplace(call, std::move(prepared)).first->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<Call, Prepared> all_;  // whose elements stay where they are
};

}  // namespace ballast::ops
