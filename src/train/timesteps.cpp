#include "train/timesteps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "core/convert.h"
#include "core/error.h"
#include "core/normal_distribution.h"
#include "core/random.h"

namespace ballast::train {
namespace {

constexpr int kTableSize = 10000;
constexpr int kShiftedTableSize = 1000;
constexpr double kNoteShift = 8;
constexpr double kLargestModeScale = 1.75;  // 2 / (pi - 2): beyond it, mode is not monotone

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double shifted(double t, double s) { return s * t / (1 + (s - 1) * t); }

// e^mu, mu on the line through (256, 0.5) and (4096, 1.15) over the number of 2 x 2 patches.
double resolution_shift(std::int64_t height, std::int64_t width) {
  check(height > 0 && width > 0, "the shift by resolution needs the latent's size, not {} x {}",
        height, width);
  const double patches = static_cast<double>((height / 2) * (width / 2));
  return std::exp(0.5 + (1.15 - 0.5) / (4096 - 256) * (patches - 256));
}

void check_options(const TimestepOptions& o) {
  const auto refuse = [](const std::string& what) { fail(ErrorCode::input, "timesteps: " + what); };
  if (!(o.min_t >= 0 && o.min_t < o.max_t && o.max_t <= 1)) {
    refuse(fmt::format("the range [{}, {}] is not within [0, 1]", o.min_t, o.max_t));
  }
  if (!(o.sigmoid_scale > 0 && std::isfinite(o.sigmoid_scale))) {
    refuse(fmt::format("sigmoid_scale is {}, expected a positive number", o.sigmoid_scale));
  }
  if (!(o.shift >= 0 && std::isfinite(o.shift))) {
    refuse(fmt::format("shift is {}, expected a positive number", o.shift));
  }
  if (!(o.logit_std > 0 && std::isfinite(o.logit_std) && std::isfinite(o.logit_mean))) {
    refuse(fmt::format("logit_mean {} and logit_std {} are no normal distribution", o.logit_mean,
                       o.logit_std));
  }
  if (o.weighting == Weighting::mode &&
      !(o.mode_scale >= -1 && o.mode_scale <= kLargestModeScale)) {
    refuse(fmt::format("mode_scale is {}, expected -1 ... {}", o.mode_scale, kLargestModeScale));
  }
  if (o.strata < 0) refuse(fmt::format("{} strata", o.strata));
}

double model_time(const TimestepOptions& o, double t) {
  return o.sampling == TimestepSampling::sigma ? std::round(1000 * t) : 1000 * t + o.time_offset;
}

bool is_high(const TimestepOptions& o, double t, double boundary) {
  return model_time(o, t) / 1000 >= boundary;
}

// The distribution of t as a non-decreasing function of a uniform number: a table of equally likely
// values or, for musubi's modes, a formula. Cuts narrow it without changing its shape.
class Distribution {
 public:
  Distribution(const TimestepOptions& o, std::int64_t latent_height, std::int64_t latent_width)
      : o_(o) {
    check_options(o);
    switch (o.sampling) {
      case TimestepSampling::table_logit_normal:
      case TimestepSampling::table_uniform:
        size_ = kTableSize;
        shift_ = o.flux_shift ? resolution_shift(latent_height, latent_width) : o.shift;
        break;
      case TimestepSampling::shifted_table:
        size_ = kShiftedTableSize;
        shift_ = o.shift > 0 ? o.shift : kNoteShift;
        break;
      case TimestepSampling::shift:
        shift_ = o.shift;
        break;
      case TimestepSampling::flux_shift:
        shift_ = resolution_shift(latent_height, latent_width);
        break;
      default:
        break;
    }
    last_ = size_;
    if (size_ > 0) {
      // Entries are f32, and so are the bounds they are compared with. 1 cuts nothing from a table
      // that ends with it.
      const auto low = static_cast<float>(o.min_t), high = static_cast<float>(o.max_t);
      drop_below([=](double t) { return t < low; });
      if (o.sampling != TimestepSampling::shifted_table || high < 1) {
        drop_from([=](double t) { return t >= high; });
      }
    } else if (o.preserve_shape && o.sampling != TimestepSampling::sigma) {
      drop_below([&](double t) { return t < o.min_t; });
      drop_from([&](double t) { return t > o.max_t; });
    }
    if (empty()) refuse_range("min_t and max_t leave no timestep");
  }

  void keep(const ExpertSide& side) {
    const auto high = [&](double t) { return is_high(o_, t, side.boundary); };
    if (side.expert == 0) {
      drop_from(high);
    } else {
      drop_below([&](double t) { return !high(t); });
    }
    if (!empty()) return;
    refuse_range(fmt::format("no timestep is on the side of the {}-noise expert, boundary {}",
                             side.expert == 0 ? "low" : "high", side.boundary));
  }

  // u in [0, 1].
  double at(double u) const {
    if (size_ > 0) {
      const int length = last_ - first_;
      return table(first_ + std::min(static_cast<int>(u * length), length - 1));
    }
    const double t = formula(from_ + (to_ - from_) * u);
    // The formula is monotone up to rounding only; a cut holds exactly.
    return std::clamp(t, formula(from_), formula(to_));
  }

 private:
  double table(int i) const {
    if (o_.sampling == TimestepSampling::shifted_table) {
      return static_cast<float>(shifted((i + 1) / 1000.0, shift_));
    }
    constexpr double kFirst = 1e-4, kLast = 1 - 1e-4;
    const double q = static_cast<float>(kFirst + (kLast - kFirst) * i / (kTableSize - 1));
    const double t = o_.sampling == TimestepSampling::table_uniform
                         ? q
                         : sigmoid(o_.sigmoid_scale * normal_quantile(q));
    return static_cast<float>(shift_ > 0 ? shifted(t, shift_) : t);
  }

  double formula(double u) const {
    if (o_.sampling == TimestepSampling::sigma) return (1000 - sigma_index(u)) / 1000;
    double t = u;
    if (o_.sampling == TimestepSampling::logsnr) {
      t = sigmoid((o_.logit_std * normal_quantile(u) - o_.logit_mean) / 2);
    } else if (o_.sampling != TimestepSampling::uniform) {
      t = sigmoid(o_.sigmoid_scale * normal_quantile(u));
    }
    if (shift_ > 0) t = shifted(t, shift_);
    return o_.preserve_shape ? t : t * (o_.max_t - o_.min_t) + o_.min_t;
  }

  // The index falls as u rises, since it counts from noise to clean.
  double sigma_index(double u) const {
    double share = 1 - u;
    if (o_.weighting == Weighting::logit_normal) {
      share = sigmoid(o_.logit_mean - o_.logit_std * normal_quantile(u));
    } else if (o_.weighting == Weighting::mode) {
      const double c = std::cos(std::numbers::pi * u / 2);
      share = 1 - u - o_.mode_scale * (c * c - 1 + u);
    }
    const double min = 1000 * o_.min_t, max = 1000 * o_.max_t;
    return std::clamp(std::floor(share * (max - min) + min), 0.0, 999.0);
  }

  // Keeps what begins with the first t that is not `below` (drop_below) or ends before the first
  // that is `above` (drop_from). Both predicates change once along the distribution.
  template <class F>
  void drop_below(F&& below) {
    if (size_ > 0) {
      first_ = first_that_is_not(below);
    } else {
      from_ = split(below).second;
    }
  }
  template <class F>
  void drop_from(F&& above) {
    const auto not_above = [&](double t) { return !above(t); };
    if (size_ > 0) {
      last_ = first_that_is_not(not_above);
    } else {
      to_ = split(not_above).first;
    }
  }

  template <class F>
  int first_that_is_not(F&& below) const {
    int low = first_, high = last_;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (below(table(middle))) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Neighbouring numbers of [from, to], the first below and the second not; both ends are the same
  // where all or none are.
  template <class F>
  std::pair<double, double> split(F&& below) const {
    double low = from_, high = to_;
    if (!below(formula(low))) return {low, low};
    if (below(formula(high))) return {high, high};
    for (double middle = 0.5 * (low + high); middle > low && middle < high;
         middle = 0.5 * (low + high)) {
      (below(formula(middle)) ? low : high) = middle;
    }
    return {low, high};
  }

  bool empty() const { return size_ > 0 ? first_ >= last_ : from_ >= to_; }

  [[noreturn]] void refuse_range(const std::string& what) const {
    fail(ErrorCode::input, fmt::format("timesteps: {} (range {} to {})", what, o_.min_t, o_.max_t),
         {{"widen min_t and max_t", "or change the shift, so that some timesteps fall between"}});
  }

  const TimestepOptions& o_;
  double shift_ = 0;          // 0: none
  int size_ = 0;              // of the table; 0: a formula
  int first_ = 0, last_ = 0;  // what is left of the table
  double from_ = 0, to_ = 1;  // what is left of the formula's argument
};

// In (0, 1), 53 bits.
double uniform_at(const RandomSource& source) {
  const PhiloxWords w = source.block(0);
  const std::uint64_t bits = (std::uint64_t{w[0]} << 32 | w[1]) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

// Place i of the round's random order of 0 ... n - 1: four Feistel rounds permute the numbers of an
// even count of bits, and one that falls outside is permuted again.
std::uint64_t shuffled(std::uint64_t i, std::uint64_t n, const RandomSource& source) {
  int half = 1;
  while ((std::uint64_t{1} << 2 * half) < n) ++half;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t left = i >> half, right = i & mask;
      i = right << half | (left ^ (source.block(right << 2 | round)[0] & mask));
    }
  } while (i >= n);
  return i;
}

// The uniform number of a sample; with strata its share of [0, 1) is the sample's own among n
// consecutive ones.
double uniform_of(const TimestepOptions& o, const DrawAt& at) {
  RandomSource source = {.seed = fold(at.seed),
                         .stream = fold(hash_of("timestep")),
                         .step = static_cast<std::uint32_t>(at.step),
                         .site = fold(static_cast<std::uint64_t>(at.sample))};
  const double u = uniform_at(source);
  if (o.strata == 0) return u;
  const auto n = static_cast<std::uint64_t>(o.strata);
  const auto place = static_cast<std::uint64_t>(at.samples_before + at.sample);
  source.stream = fold(hash_of("strata"));
  source.step = static_cast<std::uint32_t>(place / n);
  source.site = 0;
  const auto share = static_cast<double>(shuffled(place % n, n, source));
  return (share + u) / static_cast<double>(n);
}

// y(t) = exp(-2 (t - 1/2)^2); the smallest of the table is at t = 1.
double bell(double t) {
  const auto y = [](double x) { return std::exp(-2 * (x - 0.5) * (x - 0.5)); };
  static const double mean = [&] {
    double sum = 0;
    for (int i = 0; i < 1000; ++i) sum += y(shifted(1 - i / 1000.0, 5)) - y(1);
    return sum / 1000;
  }();
  return (y(t) - y(1)) / mean;
}

double weight_of(Weighting weighting, double t) {
  switch (weighting) {
    case Weighting::cosmap:
      return 2 / (std::numbers::pi * (1 - 2 * t + 2 * t * t));
    case Weighting::sigma_sqrt:
      return 1 / (t * t);
    case Weighting::bell:
      return bell(t);
    case Weighting::none:
    case Weighting::logit_normal:
    case Weighting::mode:
      break;
  }
  return 1;
}

Timestep timestep(const TimestepOptions& o, double t) {
  Timestep step = {.t = t, .model_time = model_time(o, t)};
  if (o.sampling == TimestepSampling::sigma && o.sigma_dtype != DType::f32) {
    step.t = to_f32(from_f32(static_cast<float>(t), o.sigma_dtype), o.sigma_dtype);
  }
  step.weight = weight_of(o.weighting, step.t);
  return step;
}

}  // namespace

Timestep draw_timestep(const TimestepOptions& o, const DrawAt& at, std::int64_t latent_height,
                       std::int64_t latent_width) {
  Distribution d(o, latent_height, latent_width);
  if (at.side) d.keep(*at.side);
  return timestep(o, d.at(uniform_of(o, at)));
}

Timestep timestep_at_quantile(const TimestepOptions& o, double p, std::int64_t latent_height,
                              std::int64_t latent_width) {
  check(p >= 0 && p <= 1, "a quantile is within [0, 1], not {}", p);
  return timestep(o, Distribution(o, latent_height, latent_width).at(p));
}

int draw_expert(const TimestepOptions& o, double boundary, std::uint64_t seed, std::int64_t step,
                std::int64_t latent_height, std::int64_t latent_width) {
  const RandomSource source = {.seed = fold(seed),
                               .stream = fold(hash_of("expert")),
                               .step = static_cast<std::uint32_t>(step),
                               .site = 0};
  const double t = Distribution(o, latent_height, latent_width).at(uniform_at(source));
  return is_high(o, t, boundary) ? 1 : 0;
}

}  // namespace ballast::train
