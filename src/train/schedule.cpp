#include "train/schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace ballast::train {
namespace {

// From 1 at x = 0 to 0 at x = 1.
double half_wave(double x) { return (1 + std::cos(std::numbers::pi * x)) / 2; }

void require(bool condition, const ScheduleOptions& o, std::string_view what) {
  if (condition) return;
  fail(ErrorCode::usage,
       "the learning rate schedule {} needs {}; total_steps is {}, warmup_steps {}, "
       "decay_steps {}, steps_per_epoch {}, learning_rate {}",
       name_of(o.kind), what, o.total_steps, o.warmup_steps, o.decay_steps, o.steps_per_epoch,
       o.learning_rate);
}

// The part behind the warm-up: `k` of `total` steps done.
double main_rate(const ScheduleOptions& o, double k, double total) {
  const double lr = o.learning_rate;
  const bool endless = o.kind == ScheduleKind::constant ||
                       o.kind == ScheduleKind::constant_with_warmup ||
                       o.kind == ScheduleKind::inverse_sqrt;
  require(endless || o.total_steps > 0, o, "the number of steps in total");
  const double x = std::min(1.0, k / std::max(1.0, total));  // share of the schedule that is over
  const double floor = o.min_rate_ratio;
  switch (o.kind) {
    case ScheduleKind::constant:
    case ScheduleKind::constant_with_warmup:
    case ScheduleKind::piecewise_constant:  // never comes here
      return lr;
    case ScheduleKind::linear:
      return lr * (1 - x);
    case ScheduleKind::cosine:
      if (o.style == ScheduleStyle::diffusion_pipe) {
        return o.min_rate + (lr - o.min_rate) * half_wave(x);
      }
      return lr * half_wave(o.cycles * x);
    case ScheduleKind::cosine_with_restarts:
      return x >= 1 ? 0 : lr * half_wave(std::fmod(o.cycles * x, 1.0));
    case ScheduleKind::polynomial: {
      constexpr double kEnd = 1e-7;
      require(lr > kEnd, o, "a learning rate above 1e-7");
      return (lr - kEnd) * std::pow(1 - x, o.power) + kEnd;
    }
    case ScheduleKind::inverse_sqrt: {
      const auto warmup = static_cast<double>(o.warmup_steps);
      const double scale = o.timescale > 0 ? o.timescale : warmup > 0 ? warmup : 10000;
      return lr / std::sqrt((k + scale) / scale);
    }
    case ScheduleKind::cosine_with_min_lr:
      return lr * (floor + (1 - floor) * half_wave(o.cycles * x));
    case ScheduleKind::warmup_stable_decay: {
      require(o.decay_steps > 0, o, "the number of decay steps");
      const auto decay = static_cast<double>(o.decay_steps);
      const double stable = std::max(0.0, total - decay);
      if (k < stable) return lr;
      if (k >= stable + decay) return lr * floor;
      return lr * (floor + (1 - floor) * half_wave(o.cycles * (k - stable) / decay));
    }
    case ScheduleKind::rex: {
      const double z = 1 - x;
      return lr * (floor + (1 - floor) * z / (0.1 + 0.9 * z));
    }
  }
  return lr;
}

// Moves at the ends of epochs: epoch e of E has half_wave(e / E).
double per_epoch_cosine(const ScheduleOptions& o, std::int64_t done) {
  require(o.steps_per_epoch > 0 && o.total_steps > 0, o, "the steps of an epoch and in total");
  const auto epoch = static_cast<double>(done / o.steps_per_epoch);
  const double epochs =
      std::ceil(static_cast<double>(o.total_steps) / static_cast<double>(o.steps_per_epoch));
  return o.min_rate + (o.learning_rate - o.min_rate) * half_wave(std::min(1.0, epoch / epochs));
}

double piecewise_rate(const ScheduleOptions& o, std::int64_t done) {
  require(!o.pieces.empty(), o, "its pieces");
  for (const ScheduleOptions::Piece& p : o.pieces) {
    if (done < p.until) return o.learning_rate * p.factor;
  }
  return o.learning_rate * o.pieces.back().factor;
}

}  // namespace

std::optional<std::vector<ScheduleOptions::Piece>> step_rules_of(std::string_view text) {
  std::vector<ScheduleOptions::Piece> pieces;
  const auto number = [](std::string_view word, auto& value) {
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    return error == std::errc() && end == word.data() + word.size() && value >= 0;
  };
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view rule = text.substr(0, comma);
    const std::size_t colon = rule.find(':');
    const bool last = comma == std::string_view::npos;
    ScheduleOptions::Piece p;
    if (!number(rule.substr(0, colon), p.factor) || last != (colon == std::string_view::npos)) {
      return std::nullopt;
    }
    if (!last && (!number(rule.substr(colon + 1), p.until) ||
                  p.until <= (pieces.empty() ? 0 : pieces.back().until))) {
      return std::nullopt;
    }
    pieces.push_back(p);
    if (last) return pieces;
    text.remove_prefix(comma + 1);
  }
}

double learning_rate(const ScheduleOptions& o, std::int64_t done) {
  check(done >= 0, "{} steps done", done);
  if (o.style == ScheduleStyle::per_epoch_cosine) return per_epoch_cosine(o, done);
  if (o.kind == ScheduleKind::piecewise_constant) return piecewise_rate(o, done);
  const auto k = static_cast<double>(done), total = static_cast<double>(o.total_steps);
  if (o.style == ScheduleStyle::transformers && o.kind == ScheduleKind::constant) {
    return o.learning_rate;
  }
  const auto warmup = static_cast<double>(std::max<std::int64_t>(0, o.warmup_steps));
  const bool own_start = o.style == ScheduleStyle::diffusion_pipe;
  if (k < warmup) {
    // The main part starts from its value at 0, which is the learning rate in every kind.
    return o.learning_rate * (own_start ? 1 / warmup + (1 - 1 / warmup) * k / warmup : k / warmup);
  }
  return main_rate(o, k - warmup, own_start ? total : total - warmup);
}

}  // namespace ballast::train
