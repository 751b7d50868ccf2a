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

void put_memory(StatusLine& line, std::string_view name, Bytes measured, Bytes planned) {
  if (planned.count == 0 && measured.count == 0) return;
  const Unit unit = unit_for(std::max(measured, planned));
  const auto put = [&](Bytes b) {
    const double n = static_cast<double>(b.count) / unit.bytes;
    line.put("{:.{}f}", n, unit.bytes == 1 || n >= 100 ? 0 : n >= 10 ? 1 : 2);
  };
  line.put(", {} ", name);
  put(measured);
  line.put("/");
  put(planned);
  line.put(" {}", unit.name);
}

}  // namespace

TrainProgress::TrainProgress(const Options& options, Output output)
    : options_(options), output_(std::move(output)) {
  if (output_.file == nullptr) output_.file = stderr;
  if (!output_.now) output_.now = [] { return std::chrono::steady_clock::now(); };
  terminal_ = output_.terminal.value_or(isatty(fileno(output_.file)) != 0);
  columns_ = output_.columns.value_or(terminal_ ? StatusLine::columns_of(output_.file)
                                                : StatusLine::kMostColumns);
}

TrainProgress::TrainProgress(const Options& options) : TrainProgress(options, Output{}) {}

TrainProgress::~TrainProgress() {
  if (fresh_ || (terminal_ && any_shown_)) show(true);
}

void TrainProgress::step(const Step& step) {
  last_ = step;
  fresh_ = true;
  follow(pace_, ++steps_, step.seconds);
  if (std::isfinite(step.loss)) follow(smoothed_, ++losses_, step.loss);
  const std::int64_t every = std::max<std::int64_t>(options_.print_every, 1);
  const bool due =
      terminal_ ? !any_shown_ || std::chrono::duration<double>(output_.now() - shown_).count() >=
                                     kTerminalPause
                : step.step % every == 0 || !any_shown_;
  if (due) show(false);
}

std::optional<double> TrainProgress::seconds_left() const {
  if (steps_ == 0 || options_.total <= 0) return std::nullopt;
  const std::int64_t left = std::max<std::int64_t>(options_.total - last_.step, 0);
  return pace_ * static_cast<double>(left);
}

void TrainProgress::show(bool last) {
  if (log::level() > log::Level::info) return;
  StatusLine line(columns_);
  line.put("ballast: step {}", last_.step);
  if (options_.total > 0) line.put("/{}", options_.total);
  if (last_.epoch > 0) line.put(", epoch {}", last_.epoch);
  line.put(", loss {:.4g} ({:.4g})", last_.loss, smoothed_);
  if (pace_ >= 1) {
    line.put(", {:.2f} s/step", pace_);
  } else {
    line.put(", {:.1f} ms/step", pace_ * 1e3);
  }
  if (const auto left = seconds_left(); left && *left > 0) {
    const auto whole = std::chrono::seconds(std::llround(std::min(*left, 1e9)));
    line.put(", {} left", to_string(whole));
  }
  const MemoryNumbers &measured = last_.measured, &planned = last_.planned;
  put_memory(line, "device", measured.device, planned.device);
  put_memory(line, "host", measured.host, planned.host);
  put_memory(line, "disk", measured.disk, planned.disk);
  put_memory(line, "RAM", measured.ram, planned.ram);
  line.write(output_.file, terminal_, last);
  shown_ = output_.now();
  any_shown_ = true;
  fresh_ = false;
}

}  // namespace ballast
