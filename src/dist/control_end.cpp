#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "core/to_size.h"
#include "dist/control_thread.h"
#include "memory/cgroup.h"

// How the control channel finds out that a job is over, and ends this rank.

namespace ballast {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr milliseconds kForMissing{900};  // less than `last` and what the report needs
constexpr double kLongest = 20;  // an instruction may take so many times what was predicted

// 'T' of /proc/PID/stat, or 't' under a debugger.
bool is_stopped(std::int64_t process) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%lld/stat", static_cast<long long>(process));
  const FileDescriptor file(::open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> text{};
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : 0;
  const std::string_view all(text.data(), to_size(std::max<ssize_t>(got, 0)));
  const std::size_t at = all.rfind(')');
  return at != std::string_view::npos && at + 2 < all.size() &&
         (all[at + 2] == 'T' || all[at + 2] == 't');
}

// A reader that does not read is left alone: nothing may keep a rank from ending.
void write_words(std::string_view text) {
  constexpr std::size_t kPiece = 512;  // a pipe that is ready takes as much without waiting
  while (!text.empty()) {
    pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    if (::poll(&ready, 1, 200) == 0) return;
    const ssize_t put = ::write(STDERR_FILENO, text.data(), std::min(text.size(), kPiece));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;
    text.remove_prefix(to_size(put));
  }
}

}  // namespace

std::optional<std::uint64_t> ControlChannel::Thread::oom_kills() {
  const auto group = memory_group();
  return group ? oom_kills_of(*group) : std::nullopt;
}

milliseconds ControlChannel::Thread::hang_limit() const {
  double longest = 0;
  for (const ControlPeer& p : peers_) longest = std::max(longest, p.beat.longest);
  const auto predicted =
      std::chrono::duration_cast<milliseconds>(Seconds(std::min(kLongest * longest, 1e6)));
  return std::max(options_.hang, predicted);
}

// A rank whose process is stopped says nothing at all. Where all answer, it counts that nobody's
// lanes advance while all are in a step: a rank that loads, saves or draws has no such measure.
std::optional<ControlCause> ControlChannel::Thread::find_hang(ControlTime now) const {
  if (!coordinates()) return std::nullopt;
  milliseconds limit = hang_limit();
  if (options_.rank == 1) limit += 2 * options_.gather;
  std::optional<ControlCause> hung;
  bool in_step = true, advances = false;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    const ControlPeer& p = peers_[r];
    if (p.state != ControlPeer::State::here) continue;
    const double silence = Seconds(now - p.heard).count();
    if (now - p.heard > limit) {
      return ControlCause{
          .kind = ControlCause::Kind::silent, .rank = static_cast<int>(r), .seconds = silence};
    }
    const std::string_view phase = text_of(p.beat.phase);
    in_step = in_step && (phase == "step" || phase == "update");
    advances = advances || now - p.advanced <= limit;
    const bool waits = !text_of(p.beat.exchange).empty();
    // Who waits in an exchange waits for somebody else.
    if (!hung || (!waits && !text_of(peers_[to_size(hung->rank)].beat.exchange).empty())) {
      hung = ControlCause{.kind = ControlCause::Kind::hung,
                          .rank = static_cast<int>(r),
                          .seconds = Seconds(now - p.advanced).count()};
    }
  }
  return in_step && !advances ? hung : std::nullopt;
}

std::optional<ControlCause> ControlChannel::Thread::find_absent(ControlTime now) const {
  if (options_.rank != 0 || now - begun_ < options_.join) return std::nullopt;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (peers_[r].state != ControlPeer::State::expected) continue;
    return ControlCause{.kind = ControlCause::Kind::absent,
                        .rank = static_cast<int>(r),
                        .seconds = Seconds(now - begun_).count()};
  }
  return std::nullopt;
}

// Processes that ended before they came here.
void ControlChannel::Thread::look_at_ends(ControlTime now) {
  if (!options_.end_of) return;
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    ControlPeer& p = peers_[r];
    if (p.state != ControlPeer::State::expected) continue;
    // Rank 0 and 1 hear of all others; the others of these two.
    if (!coordinates() && r > 1) continue;
    if (!options_.end_of(static_cast<int>(r))) continue;
    p.state = ControlPeer::State::gone;
    p.told = now;
    word(now);
  }
}

bool ControlChannel::Thread::all_accounted() const {
  return std::ranges::all_of(peers_, [](const ControlPeer& p) { return p.accounted(); });
}

// The coordinator has the first word, the standby coordinator the next, then each for itself.
bool ControlChannel::Thread::ready(ControlTime now) const {
  const int turn = std::min(options_.rank, 2);
  milliseconds most = options_.gather + turn * options_.gather / 2;
  // At the start of a job, ranks that fail alike come one after the other.
  const auto missing = [](const ControlPeer& p) { return p.state == ControlPeer::State::expected; };
  const bool begun = !text_of(own().beat.phase).empty();
  const bool waits = options_.rank == 0 ? std::ranges::any_of(peers_, missing) : missing(peers_[0]);
  if (!begun && waits) most += kForMissing;
  if (now - *first_word_ >= most) return true;
  if (hang_ && options_.rank == 0) return true;
  if (options_.rank != 0 || !all_accounted()) return false;
  // How a process ended is known a moment after its connection closed.
  const auto cause = find_cause(peers_);
  if (!cause || cause->kind != ControlCause::Kind::gone || !options_.end_of) return true;
  return options_.end_of(cause->rank).has_value();
}

ControlFindings ControlChannel::Thread::findings_of(const ControlCause& cause) {
  ControlFindings found;
  {
    const std::lock_guard lock(mutex_);
    found.command = command_;
  }
  const ControlPeer& peer = peers_[to_size(cause.rank)];
  if (options_.end_of && cause.kind == ControlCause::Kind::gone) {
    found.end = options_.end_of(cause.rank);
  }
  if (cause.kind == ControlCause::Kind::silent) found.stopped = is_stopped(peer.hello.process);
  const auto killed = oom_kills();
  if (killed && oom_kills_ && *killed >= *oom_kills_) found.oom_kills = *killed - *oom_kills_;
  return found;
}

void ControlChannel::Thread::decide(ControlTime now) {
  auto cause = find_cause(peers_);
  if (hang_ && (!cause || cause->kind == ControlCause::Kind::parted)) cause = hang_;
  if (!cause) cause = ControlCause{.kind = ControlCause::Kind::parted, .rank = options_.rank};
  ControlReport report = make_report(*cause, peers_, findings_of(*cause));
  std::vector<bool> hears(peers_.size());
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    const bool answers =
        !hang_ || hang_->rank != static_cast<int>(r) || hang_->kind != ControlCause::Kind::silent;
    hears[r] = static_cast<int>(r) == options_.rank || (answers && has_link(static_cast<int>(r)));
  }
  const std::vector<bool> prints = choose_printers(peers_, hears);
  for (auto& link : links_) {
    if (link->rank < 0 || !link->line.is_open()) continue;
    report.whole = prints[to_size(link->rank)];
    link->line.send(encode(report, frame_));
  }
  report.whole = prints[to_size(options_.rank)];
  apply(std::move(report), now);
}

void ControlChannel::Thread::print(const ControlReport& report) const {
  if (report.whole) return write_words(report.text);
  if (report.line.empty()) return;
  const std::string who = options_.rank > 0 ? fmt::format("[{}]", options_.rank) : "";
  write_words(fmt::format("ballast{}: {}\n", who, report.line));
}

void ControlChannel::Thread::apply(ControlReport report, ControlTime now) {
  if (applied_) return;
  applied_ = now;
  word(now);
  print(report);
  if (options_.on_report) options_.on_report(report);
  const std::lock_guard lock(mutex_);
  if (last_words_) last_words_(report);
  report_ = std::move(report);
  printed_ = true;
  changed_.notify_all();
}

void ControlChannel::Thread::end_in_time(ControlTime now) {
  if (!first_word_) return;
  int code = static_cast<int>(ErrorCode::lost);
  {
    const std::lock_guard lock(mutex_);
    if (report_) code = static_cast<int>(report_->code);
    const bool own_end = failure_.has_value() || leaving_;
    const bool over = now - *first_word_ >= options_.last;
    const bool waited = applied_ && now - *applied_ >= options_.unwind;
    if (!over && (own_end || !waited)) return;
  }
  for (auto& link : links_) link->line.flush();
  options_.end(code);
  first_word_.reset();  // in tests, which go on
}

}  // namespace ballast
