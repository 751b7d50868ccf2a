#include "report/watch/event_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace ballast {
namespace {

constexpr double kStatePause = 0.25, kCommentPause = 15;
constexpr std::size_t kMaxWaiting = 256 << 10;

}  // namespace

EventStream::EventStream(WatchedFolder run, std::uint64_t from, double now)
    : run_(std::move(run)),
      log_(from),
      text_("retry: 2000\n\n"),
      next_comment_(now + kCommentPause) {
  const FileDescriptor file = run_.file(kRunLogFile);
  const auto facts = facts_of(file);
  const std::uint64_t size = facts ? facts->size : 0;
  // Not behind a line, or too far back to be told line by line.
  const bool behind_line = from == 0 || (from <= size && read_at(file, from - 1, 1) == "\n");
  if (!behind_line || size - from > kMaxBehind) reset();
}

// Goes on behind the last whole line.
void EventStream::reset() {
  text_ += "event: reset\ndata: {}\n\n";
  const FileDescriptor file = run_.file(kRunLogFile);
  const auto facts = facts_of(file);
  std::uint64_t end = facts ? facts->size : 0;
  constexpr std::uint64_t kPiece = 4096;
  while (end > 0) {
    const std::uint64_t begin = end - std::min(end, kPiece);
    const std::string piece = read_at(file, begin, static_cast<std::size_t>(end - begin));
    const std::size_t line = piece.rfind('\n');
    if (line != piece.npos) {
      end = begin + line + 1;
      break;
    }
    end = begin;
  }
  log_ = LogFollower(end);
}

void EventStream::poll_log() {
  if (waiting() >= kMaxWaiting) {  // the follower still sees how far behind it is
    log_.read(run_, 0, [](std::string_view, std::uint64_t) {});
    return;
  }
  const auto found = log_.read(run_, kMaxWaiting, [&](std::string_view line, std::uint64_t end) {
    // A line of JSON has no control bytes; what is none must not begin a field of its own.
    if (line.empty() || line.find('\r') != line.npos) return;
    fmt::format_to(std::back_inserter(text_), "id: {}\nevent: record\ndata: {}\n\n", end, line);
  });
  if (found == LogFollower::Found::rewritten) reset();
}

void EventStream::poll_state(double now, double unix_now) {
  if (now < next_state_) return;
  next_state_ = now + kStatePause;
  std::string state = state_json(read_run_state(run_, unix_now));
  if (state == state_) return;
  state_ = std::move(state);
  text_ += "event: state\ndata: ";
  text_ += state_;
  text_ += "\n\n";
}

bool EventStream::poll(double now, double unix_now) {
  poll_log();
  poll_state(now, unix_now);
  if (now >= next_comment_) {
    next_comment_ = now + kCommentPause;
    text_ += ": still here\n\n";
  }
  return waiting() > 0;
}

std::size_t EventStream::take(char* to, std::size_t bytes) {
  const std::size_t n = std::min(bytes, waiting());
  std::memcpy(to, text_.data() + sent_, n);
  sent_ += n;
  if (sent_ == text_.size()) {
    text_.clear();
    sent_ = 0;
  }
  return n;
}

}  // namespace ballast
