#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "report/watch/folder.h"

namespace ballast {

// Reads a run log while it grows: whole lines, each once. A log that a resumed run has shortened,
// or that was replaced, is noticed also where it is longer than before by then.
class LogFollower {
 public:
  explicit LogFollower(std::uint64_t from = 0) : offset_(from) {}

  enum class Found : std::uint8_t {
    nothing,
    lines,
    rewritten,  // what was read before is no longer so; reading begins anew
  };
  // line: of whole lines without their end; end: the byte behind it. At most about max_bytes are
  // read, more of a line that is longer. Lines beyond 16 MiB are left out: line is empty.
  using Take = std::function<void(std::string_view line, std::uint64_t end)>;
  Found read(const WatchedFolder& run, std::size_t max_bytes, const Take& take);

  std::uint64_t offset() const { return offset_; }  // behind the last whole line that was read
  std::uint64_t behind() const { return size_ - std::min(size_, offset_); }  // as of the last read
  void skip_to(std::uint64_t offset);                                        // where a line begins

 private:
  bool is_same(const FileDescriptor& log, const FileFacts& facts) const;

  std::uint64_t offset_ = 0, size_ = 0;
  std::uint64_t device_ = 0, inode_ = 0;
  std::uint64_t line_ = 0;  // where the last line that was read begins
  std::string begin_;       // how it begins: its kind, its time, its step
  double changed_ = 0;
  bool skipping_ = false;  // the rest of a line that is too long
};

}  // namespace ballast
