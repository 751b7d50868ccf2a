#include "core/system_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "core/bytes.h"

namespace ballast {
namespace {

std::optional<std::uint64_t> resource_limit(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

// The first pids.max that holds a number, from the group of this process upwards.
std::optional<std::string> pids_limit() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/a/b" in version 2, "7:pids:/a/b" in version 1.
    const bool unified = line.starts_with("0::");
    const std::size_t v1 = line.find(":pids:");
    if (!unified && v1 == std::string::npos) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    std::string group = line.substr(unified ? 3 : v1 + 6);
    for (;;) {
      const std::string path = root + (group == "/" ? "" : group) + "/pids.max";
      std::ifstream file(path);
      std::uint64_t most = 0;
      if (file >> most) return fmt::format("{} = {}", path, most);
      if (group.size() <= 1) break;
      group.resize(std::max<std::size_t>(1, group.rfind('/')));
    }
  }
  return std::nullopt;
}

class LimitsInForce {
 public:
  void add(std::string limit, Advice advice) {
    if (!text_.empty()) text_ += ", ";
    text_ += limit;
    advice_.push_back(std::move(advice));
  }
  void add_bytes(decltype(RLIMIT_AS) resource, const char* flag, const char* what) {
    if (const auto bytes = resource_limit(resource)) {
      add(fmt::format("ulimit {} ({} of {})", flag, Bytes{*bytes}, what),
          {fmt::format("ulimit {} unlimited", flag), fmt::format("lifts the limit on {}", what)});
    }
  }
  Error error(std::string what) && {
    what += fmt::format(". Limits in force: {}", text_.empty() ? "none found" : text_);
    return Error(ErrorCode::device, std::move(what), std::move(advice_));
  }

 private:
  std::string text_;
  std::vector<Advice> advice_;
};

}  // namespace

Error out_of_memory() {
  LimitsInForce limits;
  limits.add_bytes(RLIMIT_AS, "-v", "address space");
  limits.add_bytes(RLIMIT_DATA, "-d", "data");
  return std::move(limits).error("the system has no memory left for this process");
}

Error out_of_threads(std::string_view what, std::string_view why) {
  LimitsInForce limits;
  limits.add_bytes(RLIMIT_AS, "-v", "address space");
  if (const auto pids = pids_limit()) {
    limits.add(*pids, {"a larger pids.max", "lets the control group have more threads"});
  }
  if (const auto threads = resource_limit(RLIMIT_NPROC)) {
    limits.add(fmt::format("ulimit -u ({} threads of this user)", *threads),
               {"a larger ulimit -u", "lets this user have more threads"});
  }
  return std::move(limits).error(
      fmt::format("the system refused to start a thread for {} ({})", what, why));
}

}  // namespace ballast
