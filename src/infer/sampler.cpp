// Compiled without contraction of products and sums: schedules are exact to the bit.

#include "infer/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/parse_enum.h"

namespace ballast::infer {
namespace {

constexpr std::int64_t kMaxSteps = 10000;
constexpr double kTrainSteps = 1000;

constexpr std::array<EnumName<Solver>, 5> kSolvers = {{{"unipc", Solver::unipc},
                                                       {"dpmpp", Solver::dpmpp},
                                                       {"euler", Solver::euler},
                                                       {"dpm++", Solver::dpmpp},
                                                       {"uni_pc", Solver::unipc}}};

constexpr std::array<EnumName<SigmaSchedule>, 5> kSchedules = {
    {{"official", SigmaSchedule::official},
     {"diffusers", SigmaSchedule::diffusers},
     {"simple", SigmaSchedule::simple},
     {"listed", SigmaSchedule::listed},
     {"linear", SigmaSchedule::linear}}};

double shifted(double s, double shift) { return shift * s / (1 + (shift - 1) * s); }

void check_options(const SamplerOptions& o) {
  const auto refuse = [](std::string what) { fail(ErrorCode::usage, std::move(what)); };
  if (o.schedule != SigmaSchedule::listed && (o.steps < 1 || o.steps > kMaxSteps)) {
    refuse(fmt::format("{} steps: expected 1 to {}", o.steps, kMaxSteps));
  }
  if (!(o.shift > 0 && o.shift <= 1e6)) {
    refuse(fmt::format("a shift of {}: expected a number above 0", o.shift));
  }
  if (o.schedule == SigmaSchedule::linear &&
      !(o.sigma_start <= 1 && o.sigma_end >= 0 && o.sigma_end < o.sigma_start)) {
    refuse(fmt::format("sigmas from {} to {}: expected 1 >= start > end >= 0", o.sigma_start,
                       o.sigma_end));
  }
  if (!(o.time_scale > 0 && o.time_scale <= 1e6)) {
    refuse(fmt::format("{} timesteps for a sigma of 1: expected a number above 0", o.time_scale));
  }
  if (o.schedule != SigmaSchedule::listed) return;
  if (o.listed.empty() || std::ssize(o.listed) > kMaxSteps) {
    refuse(fmt::format("{} listed timesteps: expected 1 to {}", o.listed.size(), kMaxSteps));
  }
  double last = std::numeric_limits<double>::infinity();
  for (const double t : o.listed) {
    if (!(t > 0 && t <= kTrainSteps && t < last)) {
      refuse(fmt::format("listed timestep {}: expected falling numbers above 0, up to 1000", t));
    }
    last = t;
  }
}

// Sigmas before they are rounded, without the one at the end.
std::vector<double> wide_sigmas(const SamplerOptions& o) {
  std::vector<double> all;
  const auto n = static_cast<double>(o.steps);
  const auto add_line = [&](double from, double to) {
    for (std::int64_t i = 0; i < o.steps; ++i) {
      all.push_back(static_cast<double>(i) * ((to - from) / n) + from);
    }
  };
  const auto shift_all = [&] {
    for (double& s : all) s = shifted(s, o.shift);
  };
  switch (o.schedule) {
    case SigmaSchedule::official:
      add_line(o.solver == Solver::unipc ? static_cast<double>(0.999f) : 1.0, 0);
      shift_all();
      break;
    case SigmaSchedule::diffusers:
      if (o.solver == Solver::euler) {
        // Its ends are shifted when it is made, all of it when it is used.
        const double least = shifted(1 / kTrainSteps, o.shift);
        const double apart = o.steps > 1 ? (least - 1) / (n - 1) : 0;
        for (std::int64_t i = 0; i < o.steps; ++i) {
          all.push_back(static_cast<double>(i) * apart + 1);
        }
        shift_all();
      } else {
        add_line(1, 1 / kTrainSteps);
        shift_all();
        if (std::abs(all[0] - 1) < 1e-6) all[0] -= 1e-6;
      }
      break;
    case SigmaSchedule::simple:
      for (std::int64_t i = 0; i < o.steps; ++i) {
        const auto j = static_cast<std::int64_t>(kTrainSteps) -
                       i * static_cast<std::int64_t>(kTrainSteps) / o.steps;
        const float s = static_cast<float>(j) / 1000.0f, k = static_cast<float>(o.shift);
        all.push_back(k * s / (1 + (k - 1) * s));
      }
      break;
    case SigmaSchedule::listed:
      for (const double t : o.listed) all.push_back(shifted(t / kTrainSteps, o.shift));
      break;
    case SigmaSchedule::linear:
      add_line(o.sigma_start, o.sigma_end);
      break;
  }
  return all;
}

// Whether the network is told whole numbers.
bool truncates(const SamplerOptions& o) {
  return o.solver != Solver::euler &&
         (o.schedule == SigmaSchedule::official || o.schedule == SigmaSchedule::diffusers);
}

}  // namespace

std::string_view name_of(Solver s) { return enum_name(kSolvers, s); }
std::optional<Solver> find_solver(std::string_view name) { return parse_enum(kSolvers, name); }

std::string_view name_of(SigmaSchedule s) { return enum_name(kSchedules, s); }
std::optional<SigmaSchedule> find_schedule(std::string_view name) {
  return parse_enum(kSchedules, name);
}

SamplerOptions distilled_steps(std::vector<double> timesteps) {
  const std::int64_t steps = std::ssize(timesteps);
  return {.solver = Solver::euler,
          .schedule = SigmaSchedule::listed,
          .steps = steps,
          .shift = 5,
          .listed = std::move(timesteps)};
}

SamplerOptions distilled_steps(std::int64_t steps) {
  std::vector<double> timesteps;
  for (std::int64_t i = 0; i < std::min(steps, kMaxSteps + 1); ++i) {
    timesteps.push_back(1000.0 * static_cast<double>(steps - i) / static_cast<double>(steps));
  }
  return distilled_steps(std::move(timesteps));
}

Schedule make_schedule(const SamplerOptions& options) {
  check_options(options);
  Schedule schedule;
  const auto scale = static_cast<float>(
      options.schedule == SigmaSchedule::linear ? options.time_scale : kTrainSteps);
  for (const double s : wide_sigmas(options)) {
    const auto narrow = static_cast<float>(s);
    schedule.sigmas.push_back(narrow);
    schedule.timesteps.push_back(truncates(options) ? std::trunc(kTrainSteps * s)
                                                    : static_cast<double>(scale * narrow));
  }
  schedule.sigmas.push_back(
      options.schedule == SigmaSchedule::linear ? static_cast<float>(options.sigma_end) : 0.0f);
  for (std::size_t i = 0; i + 1 < schedule.sigmas.size(); ++i) {
    if (schedule.sigmas[i] > schedule.sigmas[i + 1]) continue;
    fail(ErrorCode::usage,
         fmt::format("{} steps with shift {} are too close together: sigmas {} and {} are both {}",
                     schedule.steps(), options.shift, i, i + 1, schedule.sigmas[i]),
         {{"fewer steps, or a smaller shift", "so that every step has a sigma of its own"}});
  }
  return schedule;
}

Sampler::Sampler(const SamplerOptions& options, std::size_t elements)
    : solver_(options.solver), schedule_(make_schedule(options)) {
  for (const float s : schedule_.sigmas) lambdas_.push_back(std::log(1 - s) - std::log(s));
  if (solver_ == Solver::euler) return;
  for (std::vector<float>* m : {&m0_, &m1_}) m->resize(elements);
  if (solver_ != Solver::unipc) return;
  for (std::vector<float>* m : {&m2_, &corrected_}) m->resize(elements);
}

Bytes Sampler::bytes(Solver solver, std::size_t elements) {
  const std::uint64_t kept = solver == Solver::unipc ? 4 : solver == Solver::dpmpp ? 2 : 0;
  return {kept * elements * sizeof(float)};
}

void Sampler::step(std::span<const float> v, std::span<float> x) {
  check(!done(), "all {} steps are done", schedule_.steps());
  check(v.size() == x.size() && (solver_ == Solver::euler || x.size() == m0_.size()),
        "{} and {} numbers for a sampler of {}", v.size(), x.size(), m0_.size());
  const std::size_t n = x.size();
  const float at = sigma(i_);
  if (solver_ == Solver::euler) {
    const float by = sigma(i_ + 1) - at;
    for (std::size_t e = 0; e < n; ++e) x[e] += by * v[e];
  } else {
    for (std::size_t e = 0; e < n; ++e) m0_[e] = x[e] - at * v[e];
    if (solver_ == Solver::unipc) {
      unipc(x);
    } else {
      dpmpp(x);
    }
  }
  ++i_;
}

// The corrector goes again from the last sigma to this one, now that m0 is known; the predictor
// goes on to the next. m0 stays what the uncorrected sample gave.
void Sampler::unipc(std::span<float> x) {
  const std::size_t n = x.size();
  const float *m0 = m0_.data(), *m1 = m1_.data(), *m2 = m2_.data();
  if (i_ > 0) {
    const float h = lambda(i_) - lambda(i_ - 1), e1 = std::expm1(-h);
    const float a = (1 - sigma(i_)) * e1, ratio = sigma(i_) / sigma(i_ - 1);
    const float* from = corrected_.data();
    if (last_order_ == 1) {
      for (std::size_t e = 0; e < n; ++e) {
        x[e] = (ratio * from[e] - a * m1[e]) - a * (0.5f * (m0[e] - m1[e]));
      }
    } else {
      const float r = (lambda(i_ - 2) - lambda(i_ - 1)) / h;
      const float phi = e1 / -h - 1;
      const float b1 = phi / e1, b2 = 2 * (phi / -h - 0.5f) / e1;
      // rho1 + rho2 = b1, r rho1 + rho2 = b2, with row pivoting.
      const bool keep = std::abs(r) <= 1;
      const float rho2 = keep ? (b2 - r * b1) / (1 - r) : (b1 - b2 / r) / (1 - 1 / r);
      const float rho1 = keep ? b1 - rho2 : (b2 - rho2) / r;
      for (std::size_t e = 0; e < n; ++e) {
        x[e] = (ratio * from[e] - a * m1[e]) -
               a * (rho1 * ((m2[e] - m1[e]) / r) + rho2 * (m0[e] - m1[e]));
      }
    }
  }
  std::ranges::copy(x, corrected_.begin());
  // m2 <- m1 <- m0; what is left in m0 is written over by the next step.
  std::swap(m2_, m1_);
  std::swap(m1_, m0_);
  m1 = m1_.data(), m2 = m2_.data();
  const std::int64_t order = std::min({std::int64_t{2}, schedule_.steps() - i_, i_ + 1});
  last_order_ = static_cast<int>(order);
  if (sigma(i_ + 1) == 0) {
    std::ranges::copy(m1_, x.begin());
    return;
  }
  const float h = lambda(i_ + 1) - lambda(i_);
  const float a = (1 - sigma(i_ + 1)) * std::expm1(-h), ratio = sigma(i_ + 1) / sigma(i_);
  if (order == 1) {
    for (std::size_t e = 0; e < n; ++e) x[e] = ratio * x[e] - a * m1[e];
    return;
  }
  const float r = (lambda(i_ - 1) - lambda(i_)) / h;
  for (std::size_t e = 0; e < n; ++e) {
    x[e] = (ratio * x[e] - a * m1[e]) - a * (0.5f * ((m2[e] - m1[e]) / r));
  }
}

void Sampler::dpmpp(std::span<float> x) {
  const std::size_t n = x.size();
  const float *m0 = m0_.data(), *m1 = m1_.data();  // m1: of the last step
  if (sigma(i_ + 1) == 0) {
    std::ranges::copy(m0_, x.begin());
  } else {
    const float h = lambda(i_ + 1) - lambda(i_);
    const float a = (1 - sigma(i_ + 1)) * (std::exp(-h) - 1), ratio = sigma(i_ + 1) / sigma(i_);
    const bool first = i_ == 0 || i_ + 1 == schedule_.steps();
    // From sigma 1 on the step before has infinite length, and its slope weighs nothing.
    const float r = first ? 1 : (lambda(i_) - lambda(i_ - 1)) / h;
    if (first || std::isinf(r)) {
      for (std::size_t e = 0; e < n; ++e) x[e] = ratio * x[e] - a * m0[e];
    } else {
      const float slope = 1 / r, half = 0.5f * a;
      for (std::size_t e = 0; e < n; ++e) {
        x[e] = (ratio * x[e] - a * m0[e]) - half * (slope * (m0[e] - m1[e]));
      }
    }
  }
  std::swap(m0_, m1_);
}

}  // namespace ballast::infer
