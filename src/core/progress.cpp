#include "core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/bytes.h"
#include "core/log.h"
#include "core/status_line.h"

namespace ballast {
namespace {

constexpr double kSilent = 2.0;         // seconds before the first line
constexpr double kTerminalPause = 0.1;  // between two drawings of it
constexpr double kLogPause = 10.0;      // between two lines in a file

std::chrono::seconds whole(double seconds) {
  return std::chrono::seconds(std::llround(std::min(seconds, 1e9)));
}

}  // namespace

std::string to_string(std::chrono::seconds duration) {
  const std::int64_t s = duration.count();
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {} h", s / 86400, s / 3600 % 24);
}

Progress::Progress(std::string what, std::int64_t total, Unit unit, std::int64_t done,
                   Output output)
    : what_(std::move(what)),
      total_(total),
      first_(done),
      done_(done),
      unit_(unit),
      output_(std::move(output)) {
  if (output_.file == nullptr) output_.file = stderr;
  if (!output_.now) output_.now = [] { return std::chrono::steady_clock::now(); };
  terminal_ = output_.terminal.value_or(isatty(fileno(output_.file)) != 0);
  columns_ = terminal_ ? StatusLine::columns_of(output_.file) : StatusLine::kMaxColumns;
  start_ = shown_ = output_.now();
  if (log::shows_progress()) give(false);
}

Progress::Progress(std::string what, std::int64_t total, Unit unit, std::int64_t done)
    : Progress(std::move(what), total, unit, done, {}) {}

Progress::~Progress() {
  try {
    if (log::shows_progress()) {
      give(true);
    } else if (any_shown_ || seconds(start_) >= kSilent) {
      show(true);
    }
  } catch (...) {  // no memory for its text: the line is missing, the run is not
  }
}

double Progress::seconds(Time since) const {
  return std::chrono::duration<double>(output_.now() - since).count();
}

void Progress::add(std::int64_t n) {
  done_ += n;
  if (log::shows_progress()) {
    if (seconds(shown_) >= kTerminalPause) give(false);
    return;
  }
  const bool due = any_shown_ ? seconds(shown_) >= (terminal_ ? kTerminalPause : kLogPause)
                              : seconds(start_) >= kSilent;
  if (due) show(false);
}

void Progress::give(bool last) {
  log::give_progress({.what = what_,
                      .done = done_,
                      .total = total_,
                      .bytes = unit_ == Unit::bytes,
                      .ended = last});
  shown_ = output_.now();
}

void Progress::show(bool last) {
  if (log::level() > log::Level::info) return;
  const double elapsed = std::max(seconds(start_), 1e-9);
  const double each = done_ > first_ ? elapsed / static_cast<double>(done_ - first_) : 0;

  StatusLine line(columns_);
  const auto put_amount = [&](std::int64_t n) {
    if (unit_ == Unit::bytes) {
      line.put("{}", Bytes{static_cast<std::uint64_t>(n)});
    } else {
      line.put("{}", n);
    }
  };
  const bool stopped = last && done_ < total_;
  line.put("ballast: {}: {}", what_, stopped ? "stopped at " : "");
  put_amount(done_);
  if (total_ > 0 && (!last || stopped)) {
    line.put(" of ");
    put_amount(total_);
  }
  if (last) line.put(" after {}", to_string(whole(elapsed)));
  if (each > 0) {
    if (unit_ == Unit::bytes) {
      line.put(", {}/s", Bytes{static_cast<std::uint64_t>(1 / each)});
    } else if (each >= 1) {
      line.put(", {:.2f} s each", each);
    } else {
      line.put(", {:.1f} per s", 1 / each);
    }
    if (!last && total_ > 0) {
      const auto remaining = static_cast<double>(std::max<std::int64_t>(total_ - done_, 0));
      line.put(", {} left", to_string(whole(each * remaining)));
    }
  }
  line.write(output_.file, terminal_, last);
  shown_ = output_.now();
  any_shown_ = true;
}

}  // namespace ballast
