#include "report/watch/log_follower.h"

#include <utility>

#include "report/run_log.h"

namespace ballast {
namespace {

constexpr std::size_t kLineBegin = 96, kChunk = 64 << 10, kMaxLine = 16 << 20;

}  // namespace

void LogFollower::skip_to(std::uint64_t offset) {
  offset_ = offset;
  begin_.clear();
  skipping_ = false;
}

bool LogFollower::is_same(const FileDescriptor& log, const FileFacts& facts) const {
  if (facts.size < offset_) return false;
  if (inode_ != 0 && (facts.inode != inode_ || facts.device != device_)) return false;
  return begin_.empty() || read_at(log, line_, begin_.size()) == begin_;
}

LogFollower::Found LogFollower::read(const WatchedFolder& run, std::size_t max_bytes,
                                     const Take& take) {
  const FileDescriptor log = run.file(kRunLogFile);
  const auto facts = facts_of(log);
  if (!facts) return Found::nothing;
  const bool unchanged = facts->size == size_ && facts->changed == changed_ &&
                         facts->inode == inode_ && facts->device == device_;
  if (unchanged && offset_ == size_) return Found::nothing;
  if (!is_same(log, *facts)) {
    *this = LogFollower();
    return Found::rewritten;
  }
  device_ = facts->device;
  inode_ = facts->inode;
  size_ = facts->size;
  changed_ = facts->changed;
  bool found = false;
  for (std::size_t done = 0, chunk = kChunk; done < max_bytes && offset_ < size_;) {
    const std::string text = read_at(log, offset_, chunk);
    const std::size_t last = text.rfind('\n');
    if (last == text.npos) {
      if (text.size() < chunk) break;  // an incomplete line at the end
      if (chunk < kMaxLine) {
        chunk *= 2;
        continue;
      }
      skipping_ = true;
      offset_ += text.size();
      done += text.size();
      begin_.clear();
      continue;
    }
    for (std::size_t at = 0; at <= last;) {
      const std::size_t end = text.find('\n', at);
      const std::string_view line = std::string_view(text).substr(at, end - at);
      line_ = offset_ + at;
      begin_ = line.substr(0, kLineBegin);
      take(std::exchange(skipping_, false) ? std::string_view() : line, offset_ + end + 1);
      at = end + 1;
    }
    offset_ += last + 1;
    done += last + 1;
    chunk = kChunk;
    found = true;
  }
  return found ? Found::lines : Found::nothing;
}

}  // namespace ballast
