#include "data/pair_batches.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/to_size.h"
#include "data/shuffle.h"

namespace ballast::data {
namespace {

constexpr std::int64_t kSourceShapes = 8, kTargetShapes = 4;
static_assert(kSourceShapes * kTargetShapes <= static_cast<std::int64_t>(kMaxShapes));
constexpr std::int64_t kGroupedSteps = 50;  // as transformers has it

std::int64_t rounded_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// longest * k / parts, rounded up, each once.
std::vector<std::int64_t> rungs(std::int64_t longest, std::int64_t parts, std::int64_t multiple) {
  std::vector<std::int64_t> all;
  for (std::int64_t k = 1; k <= parts; ++k) {
    const std::int64_t n = rounded_up((longest * k + parts - 1) / parts, multiple);
    if (all.empty() || n > all.back()) all.push_back(n);
  }
  return all;
}

std::int64_t global_batch(const BatchOptions& o) { return o.batch * o.accumulation; }

}  // namespace

std::vector<PairLength> shape_ladder(PairLength longest, const LadderOptions& o) {
  check(longest.source > 0 && longest.target > 0 && o.multiple > 0, "a ladder up to {} and {}",
        longest.source, longest.target);
  std::vector<PairLength> ladder;
  for (const std::int64_t source :
       rungs(longest.source, o.to_longest ? 1 : kSourceShapes, o.multiple)) {
    for (const std::int64_t target :
         rungs(longest.target, o.to_longest ? 1 : kTargetShapes, o.multiple)) {
      ladder.push_back({source, target});
    }
  }
  return ladder;
}

std::size_t shape_for(std::span<const PairLength> ladder, PairLength needed) {
  const auto at = std::ranges::find_if(ladder, [&](const PairLength& s) {
    return s.source >= needed.source && s.target >= needed.target;
  });
  check(at != ladder.end(), "no shape holds {} and {} tokens", needed.source, needed.target);
  return to_size(at - ladder.begin());
}

std::int64_t sample_count(const TokenCache& cache, const BatchOptions& o) {
  return o.limit > 0 ? std::min(o.limit, cache.samples()) : cache.samples();
}

std::vector<std::uint32_t> epoch_order(const TokenCache& cache, const BatchOptions& o,
                                       std::int64_t epoch) {
  std::vector<std::uint32_t> order(to_size(sample_count(cache, o)));
  std::iota(order.begin(), order.end(), 0u);
  if (o.shuffle) shuffle(std::span(order), random_source(o.seed, "epoch", epoch, "samples"));
  if (!o.group_by_length) return order;
  const std::int64_t step = global_batch(o), samples = std::ssize(order);
  for (std::int64_t first = 0; first < samples; first += kGroupedSteps * step) {
    const auto last = std::min(samples, first + kGroupedSteps * step);
    std::stable_sort(order.begin() + first, order.begin() + last,
                     [&](std::uint32_t a, std::uint32_t b) {
                       const PairLength x = cache.length(a), y = cache.length(b);
                       return x.source != y.source ? x.source > y.source : x.target > y.target;
                     });
  }
  if (!o.shuffle) return order;
  // The short step stays the last one.
  std::vector<std::uint32_t> steps(to_size(samples / step));
  std::iota(steps.begin(), steps.end(), 0u);
  shuffle(std::span(steps), random_source(o.seed, "epoch", epoch, "steps"));
  std::vector<std::uint32_t> grouped;
  grouped.reserve(order.size());
  for (const std::uint32_t s : steps) {
    const auto from = order.begin() + static_cast<std::int64_t>(s) * step;
    grouped.insert(grouped.end(), from, from + step);
  }
  grouped.insert(grouped.end(), order.begin() + std::ssize(grouped), order.end());
  return grouped;
}

std::int64_t steps_per_epoch(std::int64_t samples, const BatchOptions& o) {
  return (samples + global_batch(o) - 1) / global_batch(o);
}

std::span<const std::uint32_t> samples_of_step(std::span<const std::uint32_t> order,
                                               const BatchOptions& o, std::int64_t step) {
  const std::size_t first = to_size(step * global_batch(o));
  check(first < order.size(), "an epoch of {} samples has no step {}", order.size(), step);
  return order.subspan(first, std::min(to_size(global_batch(o)), order.size() - first));
}

PairLength needed_shape(const TokenCache& cache, std::span<const std::uint32_t> samples) {
  PairLength needed = {1, 1};
  for (const std::uint32_t s : samples) {
    const PairLength n = cache.length(s);
    needed.source = std::max(needed.source, n.source);
    needed.target = std::max(needed.target, n.target);
  }
  return needed;
}

std::int64_t label_count(const TokenCache& cache, std::span<const std::uint32_t> samples) {
  std::int64_t sum = 0;
  for (const std::uint32_t s : samples) sum += cache.length(s).target;
  return sum;
}

void read_batch(const TokenCache& cache, std::span<const std::uint32_t> samples, PairLength shape,
                std::int32_t pad, std::int32_t start, const PaddedBatch& to) {
  const std::size_t places = to.source_lengths.size();
  const std::size_t S = to_size(shape.source), T = to_size(shape.target);
  check(samples.size() <= places && to.source.size() == places * S &&
            to.decoder_input.size() == places * T && to.labels.size() == places * T,
        "{} samples of {} and {} tokens in {} places", samples.size(), S, T, places);
  std::ranges::fill(to.source, pad);
  std::ranges::fill(to.source_lengths, 1);
  std::ranges::fill(to.decoder_input, pad);
  std::ranges::fill(to.labels, kIgnoredLabel);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const PairLength n = cache.length(samples[i]);
    check(n.source <= shape.source && n.target <= shape.target,
          "sample {} is longer than its batch", samples[i]);
    const auto labels = to.labels.subspan(i * T, to_size(n.target));
    cache.read(samples[i], to.source.subspan(i * S, to_size(n.source)), labels);
    to.source_lengths[i] = static_cast<std::int32_t>(n.source);
    std::ranges::copy(labels.first(labels.size() - 1),
                      to.decoder_input.begin() + static_cast<std::int64_t>(i * T + 1));
  }
  for (std::size_t i = 0; i < places; ++i) to.decoder_input[i * T] = start;
}

}  // namespace ballast::data
