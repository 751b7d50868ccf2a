#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "core/bytes.h"
#include "memory/cgroup.h"
#include "tests/support/temp_dir.h"

namespace ballast::test {

// A control group of its own for a child process, with a memory limit and without swap, below the
// group that the test itself is in (v1 or v2). reason() tells why there is none.
class MemoryGroup {
 public:
  explicit MemoryGroup(Bytes limit) {
    const auto own = memory_group();
    if (!own) {
      reason_ = "no memory control group can be seen here";
      return;
    }
    // In v2 only a group without processes has limited groups below it: beside ours, then.
    for (const std::filesystem::path& parent : {*own, own->parent_path()}) {
      path_ = parent / ("ballast_test_" + std::to_string(::getpid()));
      std::error_code error;
      if (!std::filesystem::create_directory(path_, error)) continue;
      const std::string bytes = std::to_string(limit.count);
      v1_ = std::filesystem::exists(path_ / "memory.limit_in_bytes");
      made_ = put(v1_ ? "memory.limit_in_bytes" : "memory.max", bytes);
      put(v1_ ? "memory.memsw.limit_in_bytes" : "memory.swap.max", v1_ ? bytes : "0");
      if (made_) return;
      std::filesystem::remove(path_, error);
    }
    reason_ = "no right to make a memory control group below " + own->string();
  }
  MemoryGroup(const MemoryGroup&) = delete;
  ~MemoryGroup() {
    if (made_) ::rmdir(path_.c_str());  // empty: its processes were waited for
  }

  bool made() const { return made_; }
  const std::string& reason() const { return reason_; }
  std::string limit_file() const {
    return (path_ / (v1_ ? "memory.limit_in_bytes" : "memory.max")).string();
  }
  // Called by the process that is to be limited. Ends it where it may not join.
  void join() const {
    if (!put("cgroup.procs", std::to_string(::getpid()))) ::_exit(126);
  }
  // The most that was ever charged, pages of files included.
  std::optional<Bytes> most() const {
    const std::string text =
        read_whole((path_ / (v1_ ? "memory.max_usage_in_bytes" : "memory.peak")).string());
    if (text.empty()) return std::nullopt;
    return Bytes{std::stoull(text)};
  }

 private:
  bool put(const char* file, const std::string& text) const {
    std::ofstream out(path_ / file);
    out << text << std::flush;
    return static_cast<bool>(out);
  }

  std::filesystem::path path_;
  std::string reason_;
  bool v1_ = false, made_ = false;
};

}  // namespace ballast::test
