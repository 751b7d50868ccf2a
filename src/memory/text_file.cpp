#include "memory/text_file.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/to_size.h"
#include "memory/disk_file.h"
#include "memory/regular_file.h"

namespace ballast {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;

std::string whole_text(const DiskFile& file, std::uint64_t max_bytes, std::string_view what) {
  if (file.size() > max_bytes) {
    fail(ErrorCode::input, "{}: {} has at most {} bytes, this file has {}",
         printable(file.path(), 400), what, max_bytes, file.size());
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

std::string read_text_file(const std::string& path, std::uint64_t max_bytes,
                           std::string_view what) {
  return whole_text(DiskFile::open(path, DiskMode::buffered), max_bytes, what);
}

std::optional<std::string> read_text_file_if_there(const std::string& path, std::uint64_t max_bytes,
                                                   std::string_view what) {
  if (::access(path.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
    return std::nullopt;
  }
  return read_text_file(path, max_bytes, what);
}

LineReader::LineReader(std::string name, int fd, FileDescriptor owned, const LineLimits& limits)
    : name_(std::move(name)),
      fd_(fd),
      owned_(std::move(owned)),
      limits_(limits),
      buffer_(kReadBytes) {}

LineReader LineReader::open(const std::string& path, const LineLimits& limits) {
  FileDescriptor fd = open_regular_file(path);
  const int number = fd.get();
  return LineReader(path, number, std::move(fd), limits);
}

LineReader LineReader::standard_input(const LineLimits& limits) {
  return LineReader("standard input", STDIN_FILENO, {}, limits);
}

bool LineReader::fill() {
  for (;;) {
    const ssize_t got = ::read(fd_, buffer_.data(), buffer_.size());
    if (got >= 0) {
      rest_ = {buffer_.data(), to_size(got)};
      return got > 0;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN || owned_) fail_io(name_, fmt::format("read at offset {}", at_), errno);
    // Somebody made our standard input non-blocking.
    pollfd wait = {.fd = fd_, .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, -1);
  }
}

bool LineReader::next(FileLine& found) {
  found = {.text = {}, .number = number_ + 1, .begin = at_, .end = at_};
  line_.clear();
  while (!ended_) {
    if (rest_.empty() && !fill()) {
      ended_ = true;
      break;
    }
    const std::size_t newline = rest_.find('\n');
    const std::string_view part = rest_.substr(0, newline);
    const std::size_t used = part.size() + (newline == std::string_view::npos ? 0 : 1);
    rest_.remove_prefix(used);
    at_ += used;
    if (at_ > limits_.file_bytes) {
      fail(ErrorCode::input, "{}: more than {} bytes", printable(name_, 400), limits_.file_bytes);
    }
    if (line_.size() + part.size() > limits_.line_bytes) {
      if (limits_.long_line == LineLimits::LongLine::refuse) {
        fail(ErrorCode::input, "{}, line {}: more than {} bytes", printable(name_, 400),
             found.number, limits_.line_bytes);
      }
      found.too_long = true;
      line_.clear();
    }
    if (!found.too_long) line_ += part;
    if (newline != std::string_view::npos) break;
  }
  if (at_ == found.begin) return false;
  number_ = found.number;
  found.text = line_;
  found.end = at_;
  found.complete = !ended_;
  return true;
}

}  // namespace ballast
