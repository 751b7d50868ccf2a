#include "examples/demo_model/energy.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "core/error.h"
#include "examples/demo_model/latents.h"

namespace ballast::demo {
namespace {

double length_between(const std::vector<float>& a, const std::vector<float>& b) {
  return std::sqrt(mean_squared_distance(a, b));
}

double mean_within(const std::vector<std::vector<float>>& x) {
  double sum = 0, pairs = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j, ++pairs) sum += length_between(x[i], x[j]);
  }
  return sum / pairs;
}

using ByPrompt = std::map<std::string, std::vector<std::vector<float>>>;

ByPrompt by_prompt(const std::string* files, std::size_t count) {
  ByPrompt all;
  for (std::size_t i = 0; i < count; ++i) {
    SampledLatent latent = read_sampled_latent(files[i]);
    all[latent.prompt].push_back(std::move(latent.values));
  }
  return all;
}

EnergyOfSet energy_of_set(const ByPrompt& from, const std::string* files, std::size_t count) {
  EnergyOfSet set = {.first = files[0], .clips = count, .prompts = from.size()};
  const ByPrompt of = by_prompt(files, count);
  const auto prompts = static_cast<double>(from.size());
  double squares = 0;
  for (const auto& [prompt, y] : from) {
    const auto found = of.find(prompt);
    if (found == of.end() || found->second.size() < 2 || y.size() < 2) {
      fail(ErrorCode::input,
           fmt::format("of \"{}\" there are {} samples, and {} in the set of {}: "
                       "expected two of each at least",
                       prompt, y.size(), found == of.end() ? 0 : found->second.size(), files[0]));
    }
    const Energy e = energy_of(found->second, y);
    set.mean.distance += e.distance / prompts;
    set.mean.variety += e.variety / prompts;
    squares += e.distance * e.distance / prompts;
  }
  const double variance = squares - set.mean.distance * set.mean.distance;
  if (from.size() > 1) set.error = std::sqrt(std::max(variance, 0.) / (prompts - 1));
  return set;
}

}  // namespace

Energy energy_of(const std::vector<std::vector<float>>& x,
                 const std::vector<std::vector<float>>& y) {
  check(x.size() > 1 && y.size() > 1, "{} and {} samples: expected two at least", x.size(),
        y.size());
  const double within_x = mean_within(x), within_y = mean_within(y);
  double between = 0;
  for (const std::vector<float>& a : x) {
    for (const std::vector<float>& b : y) between += length_between(a, b);
  }
  between /= static_cast<double>(x.size() * y.size());
  return {.distance = between > 0 ? 1 - (within_x + within_y) / (2 * between) : 0,
          .variety = within_x / within_y};
}

std::vector<EnergyOfSet> energies(const std::vector<std::string>& from,
                                  const std::vector<std::string>& of) {
  check_sets(from, of);
  const ByPrompt teacher = by_prompt(from.data(), from.size());
  std::vector<EnergyOfSet> all;
  for (std::size_t i = 0; i < of.size(); i += from.size()) {
    all.push_back(energy_of_set(teacher, of.data() + i, from.size()));
  }
  return all;
}

}  // namespace ballast::demo
