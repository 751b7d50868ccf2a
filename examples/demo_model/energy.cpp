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

struct Mean {
  double value = 0, error = 0;  // of the value
};
Mean mean_of(const std::vector<double>& x) {
  const auto n = static_cast<double>(x.size());
  Mean m;
  for (const double v : x) m.value += v / n;
  double squares = 0;
  for (const double v : x) squares += (v - m.value) * (v - m.value);
  if (x.size() > 1) m.error = std::sqrt(squares / (n * (n - 1)));
  return m;
}

// first: distances of the first set, by prompt; filled by it.
EnergyOfSet energy_of_set(const ByPrompt& from, const std::string* files, std::size_t count,
                          std::vector<double>& first) {
  EnergyOfSet set = {.first = files[0], .clips = count, .prompts = from.size()};
  const ByPrompt of = by_prompt(files, count);
  const auto prompts = static_cast<double>(from.size());
  std::vector<double> distances;
  for (const auto& [prompt, y] : from) {
    const auto found = of.find(prompt);
    if (found == of.end() || found->second.size() < 2 || y.size() < 2) {
      fail(ErrorCode::input,
           fmt::format("of \"{}\" there are {} samples, and {} in the set of {}: "
                       "expected two of each at least",
                       prompt, y.size(), found == of.end() ? 0 : found->second.size(), files[0]));
    }
    const Energy e = energy_of(found->second, y);
    set.mean.variety += e.variety / prompts;
    distances.push_back(e.distance);
  }
  const Mean distance = mean_of(distances);
  set.mean.distance = distance.value;
  set.error = distance.error;
  if (first.empty()) first = distances;
  for (std::size_t i = 0; i < distances.size(); ++i) distances[i] -= first[i];
  const Mean change = mean_of(distances);
  set.change = change.value;
  set.change_error = change.error;
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
  std::vector<double> first;
  for (std::size_t i = 0; i < of.size(); i += from.size()) {
    all.push_back(energy_of_set(teacher, of.data() + i, from.size(), first));
  }
  return all;
}

}  // namespace ballast::demo
