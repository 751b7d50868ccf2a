#include "data/bucket_sizes.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ballast::data {
namespace {

// Beyond these a config is a mistake, and products of sizes could leave 64 bits.
constexpr double kLargestSide = 65536;
constexpr std::int64_t kMaxFrames = 1 << 20;
constexpr double kSteepestRatio = 1000;
constexpr std::int64_t kMaxRatios = 4096;

void round_sort_unique(std::vector<double>& values) {
  for (double& v : values) v = std::nearbyint(v * 1000) / 1000;
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

void check_between(double value, double low, double high, const char* what) {
  if (value >= low && value <= high) return;  // false for NaN
  fail(ErrorCode::input, "{} {} is not between {} and {}", what, value, low, high);
}

double log_distance(double ratio, double width, double height) {
  return std::abs(std::log(width / height) - std::log(ratio));
}

ClipSize size_at(const BucketRules& rules, double resolution, double ratio, std::int64_t frames) {
  const double area = resolution * resolution;
  const double width = std::sqrt(area * ratio);
  return {round_to_multiple(width, rules.multiple), round_to_multiple(area / width, rules.multiple),
          clip_length(frames)};
}

ClipSize rounded(const BucketRules& rules, const ClipSize& s) {
  return {round_to_multiple(static_cast<double>(s.width), rules.multiple),
          round_to_multiple(static_cast<double>(s.height), rules.multiple), clip_length(s.frames)};
}

std::vector<ClipSize> nearest_size(const BucketRules& rules, const MediaSize& media,
                                   std::int64_t frames) {
  const auto distance = [&](const ClipSize& s) {
    return log_distance(static_cast<double>(s.width) / static_cast<double>(s.height),
                        static_cast<double>(media.width), static_cast<double>(media.height));
  };
  const ClipSize* best = nullptr;
  for (const ClipSize& s : rules.sizes) {  // longest first, so ties keep the longest
    if (s.frames > frames || (frames > 1 && s.frames == 1)) continue;
    if (best == nullptr || distance(s) < distance(*best)) best = &s;
  }
  if (best == nullptr) return {};
  return {rounded(rules, *best)};
}

void check_sizes(const BucketRules& rules) {
  for (const ClipSize& s : all_buckets(rules)) {
    if (s.width > 0 && s.height > 0) continue;
    fail(ErrorCode::input,
         "a bucket of {} x {} pixels: smaller than half of {}, the multiple that "
         "widths and heights are rounded to",
         s.width, s.height, rules.multiple);
  }
}

}  // namespace

BucketRules checked(BucketRules rules) {
  check(rules.multiple > 0, "sizes are multiples of {}", rules.multiple);
  check_between(rules.fps, 1e-3, 1e6, "frame rate");
  for (const ClipSize& s : rules.sizes) {
    check_between(static_cast<double>(s.width), 1, kLargestSide, "bucket width");
    check_between(static_cast<double>(s.height), 1, kLargestSide, "bucket height");
    check_between(static_cast<double>(s.frames), 1, kMaxFrames, "bucket frames");
  }
  std::stable_sort(rules.sizes.begin(), rules.sizes.end(),
                   [](const ClipSize& a, const ClipSize& b) { return a.frames > b.frames; });
  if (rules.ratios.empty()) rules.ratios = {1};
  for (const double r : rules.ratios) {
    check_between(r, 1 / kSteepestRatio, kSteepestRatio, "aspect ratio");
  }
  for (const double s : rules.resolutions) check_between(s, 1, kLargestSide, "resolution");
  for (const std::int64_t f : rules.frames) {
    check_between(static_cast<double>(f), 1, kMaxFrames, "frame bucket");
  }
  round_sort_unique(rules.ratios);
  round_sort_unique(rules.resolutions);
  rules.frames.push_back(1);
  std::sort(rules.frames.begin(), rules.frames.end());
  rules.frames.erase(std::unique(rules.frames.begin(), rules.frames.end()), rules.frames.end());
  check_sizes(rules);
  return rules;
}

std::vector<double> geometric_ratios(double min, double max, std::int64_t count) {
  check_between(min, 1 / kSteepestRatio, kSteepestRatio, "min_ar");
  check_between(max, 1 / kSteepestRatio, kSteepestRatio, "max_ar");
  check_between(static_cast<double>(count), 1, kMaxRatios, "num_ar_buckets");
  std::vector<double> ratios;
  const double first = std::log(min), last = std::log(max);
  for (std::int64_t i = 0; i < count; ++i) {
    const double at = count == 1 ? 0 : static_cast<double>(i) / static_cast<double>(count - 1);
    ratios.push_back(std::exp(first + at * (last - first)));
  }
  ratios.front() = min;  // exactly, whatever exp(log()) makes of them
  if (count > 1) ratios.back() = max;
  return ratios;
}

double nearest_ratio(std::span<const double> ratios, double width, double height) {
  check(!ratios.empty(), "no aspect ratio to choose from");
  double best = ratios[0];
  for (const double r : ratios) {
    if (log_distance(r, width, height) < log_distance(best, width, height)) best = r;
  }
  return best;
}

std::int64_t round_to_multiple(double x, std::int64_t multiple) {
  // nearbyint rounds half to even in the default rounding mode, which nothing here changes.
  return static_cast<std::int64_t>(std::nearbyint(x / static_cast<double>(multiple))) * multiple;
}

std::int64_t clip_length(std::int64_t frames) { return (frames - 1) / 4 * 4 + 1; }

std::int64_t resampled_frames(const MediaSize& media, double fps) {
  if (media.frames <= 1 || !(media.fps > 0)) return media.frames;
  const double n = static_cast<double>(media.frames) * fps / media.fps;
  return n < 9e15 ? static_cast<std::int64_t>(n) : media.frames;
}

std::vector<ClipSize> buckets_of(const BucketRules& rules, const MediaSize& media) {
  if (media.width < 1 || media.height < 1 || media.frames < 1) return {};
  const std::int64_t frames = resampled_frames(media, rules.fps);
  if (frames < 1) return {};
  if (!rules.sizes.empty()) return nearest_size(rules, media, frames);
  const auto longer = std::upper_bound(rules.frames.begin(), rules.frames.end(), frames);
  const std::int64_t bucket = *(longer - 1);  // 1 is always there
  if (frames > 1 && bucket == 1) return {};   // too short
  const double ratio = nearest_ratio(rules.ratios, static_cast<double>(media.width),
                                     static_cast<double>(media.height));
  std::vector<ClipSize> buckets;
  for (const double s : rules.resolutions) buckets.push_back(size_at(rules, s, ratio, bucket));
  return buckets;
}

std::vector<ClipSize> all_buckets(const BucketRules& rules) {
  std::vector<ClipSize> buckets;
  for (const ClipSize& s : rules.sizes) buckets.push_back(rounded(rules, s));
  if (rules.sizes.empty()) {
    for (const double s : rules.resolutions) {
      for (const double r : rules.ratios) {
        for (const std::int64_t f : rules.frames) buckets.push_back(size_at(rules, s, r, f));
      }
    }
  }
  std::sort(buckets.begin(), buckets.end());
  buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
  return buckets;
}

}  // namespace ballast::data
