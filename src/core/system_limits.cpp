#include "core/system_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <vector>

namespace ballast {
namespace {

std::optional<std::uint64_t> resource_limit(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

class LimitsInForce {
 public:
  void add(const std::string& limit, Advice advice) {
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

// Limits on memory count: a task needs a stack.
Error out_of_tasks(std::string what) {
  LimitsInForce limits;
  limits.add_bytes(RLIMIT_AS, "-v", "address space");
  limits.add_bytes(RLIMIT_DATA, "-d", "data");
  if (const auto pids = pids_limit()) {
    limits.add(*pids, {"a larger pids.max", "lets the control group have more threads"});
  }
  if (const auto threads = resource_limit(RLIMIT_NPROC)) {
    limits.add(fmt::format("ulimit -u ({} threads of this user)", *threads),
               {"a larger ulimit -u", "lets this user have more threads"});
  }
  return std::move(limits).error(std::move(what));
}

}  // namespace

Error out_of_memory() {
  LimitsInForce limits;
  limits.add_bytes(RLIMIT_AS, "-v", "address space");
  limits.add_bytes(RLIMIT_DATA, "-d", "data");
  return std::move(limits).error("the system has no memory left for this process");
}

Error out_of_threads(std::string_view what, std::string_view why) {
  return out_of_tasks(fmt::format("the system refused to start a thread for {} ({})", what, why));
}

Error out_of_processes(std::string_view what, std::string_view why) {
  return out_of_tasks(fmt::format("the system refused to start a process for {} ({})", what, why));
}

std::optional<std::string> pids_limit(const std::filesystem::path& root) {
  std::optional<std::uint64_t> least;
  std::string text;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/a/b" in version 2, "7:pids:/a/b" in version 1.
    const bool unified = line.starts_with("0::");
    const std::size_t v1 = line.find(":pids:");
    if (!unified && v1 == std::string::npos) continue;
    const std::string mount = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/pids";
    std::string group = line.substr(unified ? 3 : v1 + 6);
    if (!group.starts_with('/')) continue;
    for (;;) {  // up to the root
      const std::string path = mount + (group == "/" ? "" : group) + "/pids.max";
      std::ifstream file(root / path.substr(1));
      std::uint64_t most = 0;
      if (file >> most && (!least || most < *least)) {
        least = most;
        text = fmt::format("{} = {}", path, most);
      }
      if (group.size() <= 1) break;
      group.resize(std::max<std::size_t>(1, group.rfind('/')));
    }
  }
  return least ? std::optional(text) : std::nullopt;
}

void raise_open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);  // else it stays as it is
}

std::optional<Bytes> file_size_limit() {
  const auto limit = resource_limit(RLIMIT_FSIZE);
  return limit ? std::optional(Bytes{*limit}) : std::nullopt;
}

std::vector<Advice> advice_for_errno(int error) {
  if (error == EMFILE) {
    const auto most = resource_limit(RLIMIT_NOFILE);
    return {{"raise ulimit -Hn", fmt::format("ulimit -n allows this process {} open files",
                                             most ? std::to_string(*most) : "no more")}};
  }
  const auto size = file_size_limit();
  if (error == EFBIG && size) {
    return {{"ulimit -f unlimited", fmt::format("ulimit -f allows files of {}", *size)}};
  }
  return {};
}

}  // namespace ballast
