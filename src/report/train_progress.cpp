#include "report/train_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/log.h"
#include "core/progress.h"
#include "core/status_line.h"

namespace ballast {
namespace {

constexpr double kTerminalPause = 0.1;  // seconds between two drawings
constexpr double kLogPause = 1.0;       // and between two lines in a file
constexpr std::int64_t kMemory = 50;    // steps that means look back on

// Mean that forgets: plain until it has seen kMemory values.
void follow(double& mean, std::int64_t seen, double value) {
  mean += (value - mean) / static_cast<double>(std::min(seen, kMemory));
}

struct Unit {
  double bytes;
  std::string_view name;
};

Unit unit_for(Bytes b) {
  constexpr std::array<Unit, 4> kUnits = {{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}}};
  for (const Unit& u : kUnits) {
    if (static_cast<double>(b.count) >= u.bytes) return u;
  }
  return kUnits.back();
}

void put_memory(StatusLine& line, std::string_view separator, std::string_view name, Bytes measured,
                Bytes planned) {
  if (planned.count == 0 && measured.count == 0) return;
  const Unit unit = unit_for(std::max(measured, planned));
  const auto put = [&](Bytes b) {
    const double n = static_cast<double>(b.count) / unit.bytes;
    line.put("{:.{}f}", n, unit.bytes == 1 || n >= 100 ? 0 : n >= 10 ? 1 : 2);
  };
  line.put("{}{} ", separator, name);
  put(measured);
  line.put("/");
  put(planned);
  line.put(" {}", unit.name);
}

// "4m24s"
void put_short(StatusLine& line, std::chrono::seconds duration) {
  const std::int64_t s = duration.count();
  if (s < 60) return line.put("{}s", s);
  if (s < 3600) return line.put("{}m{:02}s", s / 60, s % 60);
  if (s < 86400) return line.put("{}h{:02}m", s / 3600, s / 60 % 60);
  line.put("{}d{}h", s / 86400, s / 3600 % 24);
}

// From all that there is to what a narrow terminal has room for. Memory is in every form.
enum class Form { full, plain, compact, without_time_left, without_loss, without_pace };
constexpr std::array<Form, 6> kForms = {Form::full,         Form::plain,
                                        Form::compact,      Form::without_time_left,
                                        Form::without_loss, Form::without_pace};

}  // namespace

TrainProgress::TrainProgress(const Options& options, Output output)
    : options_(options), output_(std::move(output)) {
  if (output_.file == nullptr) output_.file = stderr;
  if (!output_.now) output_.now = [] { return std::chrono::steady_clock::now(); };
  terminal_ = output_.terminal.value_or(isatty(fileno(output_.file)) != 0);
  columns_ = output_.columns.value_or(terminal_ ? StatusLine::columns_of(output_.file)
                                                : StatusLine::kMaxColumns);
}

TrainProgress::TrainProgress(const Options& options) : TrainProgress(options, Output{}) {}

TrainProgress::~TrainProgress() {
  if (fresh_ || (terminal_ && any_shown_)) show(true);
}

void TrainProgress::step(const Step& step) {
  last_ = step;
  fresh_ = true;
  follow(pace_, ++steps_, step.seconds);
  follow(samples_, steps_, static_cast<double>(step.samples));
  follow(batches_, steps_, static_cast<double>(step.batches));
  if (std::isfinite(step.loss)) follow(smoothed_, ++losses_, step.loss);
  const std::int64_t every = std::max<std::int64_t>(options_.print_every, 1);
  const auto passed = [&] { return std::chrono::duration<double>(output_.now() - shown_).count(); };
  // Who asks for every tenth step gets it; who asks for nothing gets a line a second.
  const bool wanted = every > 1 ? step.step % every == 0 : passed() >= kLogPause;
  const bool due = !any_shown_ || (terminal_ ? passed() >= kTerminalPause : wanted);
  if (due) show(false);
}

std::optional<double> TrainProgress::seconds_left() const {
  if (steps_ == 0 || options_.total <= 0) return std::nullopt;
  const std::int64_t left = std::max<std::int64_t>(options_.total - last_.step, 0);
  return pace_ * static_cast<double>(left);
}

void TrainProgress::show(bool last) {
  if (log::level() > log::Level::info) return;
  const auto put_all = [&](StatusLine& line, Form form) {
    const bool full = form == Form::full, wordy = form <= Form::plain;
    const std::string_view separator = wordy ? ", " : " ";
    line.put("{}step {}", full ? "ballast: " : "", last_.step);
    if (options_.total > 0) line.put("/{}", options_.total);
    if (full && last_.epoch > 0) line.put(", epoch {}", last_.epoch);
    if (form < Form::without_loss) line.put("{}loss {:.4g}", separator, last_.loss);
    if (full) line.put(" ({:.4g})", smoothed_);
    if (form == Form::without_pace) {
      // no room for it
    } else if (pace_ >= 1) {
      line.put("{}{:.2f} s{}", separator, pace_, wordy ? "/step" : "");
    } else {
      line.put("{}{:.1f} ms{}", separator, pace_ * 1e3, wordy ? "/step" : "");
    }
    if (batches_ > 0 && pace_ > 0 && full) {
      line.put(", {:.3g} samples/s, {:.3g} batches/s", samples_ / pace_, batches_ / pace_);
    } else if (batches_ > 0 && pace_ > 0 && wordy) {
      line.put(", {:.3g} samples/s", samples_ / pace_);
    }
    if (const auto left = seconds_left(); left && *left > 0 && form < Form::without_time_left) {
      const auto whole = std::chrono::seconds(std::llround(std::min(*left, 1e9)));
      line.put("{}", separator);
      wordy ? line.put("{}", to_string(whole)) : put_short(line, whole);
      line.put(" left");
    }
    const MemoryNumbers &measured = last_.measured, &planned = last_.planned;
    // Without a GPU its arena is RAM, and counted there.
    if (options_.gpu) put_memory(line, separator, "GPU", measured.device, planned.device);
    put_memory(line, separator, "RAM", measured.ram, planned.ram);
    put_memory(line, separator, "disk", measured.disk, planned.disk);
  };
  for (const Form form : kForms) {
    StatusLine line(columns_);
    put_all(line, form);
    if (line.cut() && form != kForms.back()) continue;
    line.write(output_.file, terminal_, last);
    break;
  }
  shown_ = output_.now();
  any_shown_ = true;
  fresh_ = false;
}

}  // namespace ballast
