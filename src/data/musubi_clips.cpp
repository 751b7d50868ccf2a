#include "data/musubi_clips.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace ballast::data {
namespace {

std::int64_t floor_to_step(std::int64_t x) { return x / kMusubiStep * kMusubiStep; }

double ratio(PixelSize s) { return static_cast<double>(s.width) / static_cast<double>(s.height); }

constexpr std::array<std::pair<std::string_view, FrameExtraction>, 5> kExtractions = {{
    {"head", FrameExtraction::head},
    {"chunk", FrameExtraction::chunk},
    {"slide", FrameExtraction::slide},
    {"uniform", FrameExtraction::uniform},
    {"full", FrameExtraction::full},
}};

// Starts of the clips of f frames, for the modes that have a target length.
void add_clips(const ClipRules& rules, std::int64_t n, std::int64_t f, std::vector<Clip>& clips) {
  if (n < f) return;
  switch (rules.extraction) {
    case FrameExtraction::chunk:
      for (std::int64_t i = 0; i + f <= n; i += f) clips.push_back({i, f});
      return;
    case FrameExtraction::slide:
      for (std::int64_t i = 0; i <= n - f; i += rules.stride) clips.push_back({i, f});
      return;
    case FrameExtraction::uniform:
      for (std::int64_t k = 0; rules.samples > 1 && k < rules.samples; ++k) {
        const double step = static_cast<double>(n - f) / static_cast<double>(rules.samples - 1);
        const bool last = k + 1 == rules.samples;  // linspace ends exactly at its end
        clips.push_back(
            {last ? n - f : static_cast<std::int64_t>(static_cast<double>(k) * step), f});
      }
      if (rules.samples <= 1) clips.push_back({0, f});
      return;
    case FrameExtraction::head:
    case FrameExtraction::full:
      clips.push_back({0, f});
      return;
  }
}

}  // namespace

std::vector<PixelSize> musubi_buckets(PixelSize resolution, bool enable_bucket) {
  check(resolution.width > 0 && resolution.height > 0, "resolution {} x {}", resolution.width,
        resolution.height);
  if (!enable_bucket) return {resolution};
  const std::int64_t area = resolution.width * resolution.height;
  const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(area)));
  std::vector<PixelSize> buckets;
  for (std::int64_t w = std::max(floor_to_step(side / 2), kMusubiStep); w < side + kMusubiStep;
       w += kMusubiStep) {
    const std::int64_t h = floor_to_step(area / w);
    if (h == 0) continue;
    buckets.push_back({w, h});
    buckets.push_back({h, w});
  }
  if (buckets.empty()) {
    fail(ErrorCode::input, "resolution {} x {} is too small for buckets in steps of {}",
         resolution.width, resolution.height, kMusubiStep);
  }
  std::sort(buckets.begin(), buckets.end());
  buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
  return buckets;
}

PixelSize musubi_bucket_of(std::span<const PixelSize> buckets, PixelSize resolution,
                           PixelSize image, bool no_upscale) {
  check(!buckets.empty(), "no bucket to choose from");
  if (no_upscale && image.width * image.height <= resolution.width * resolution.height) {
    return {floor_to_step(image.width), floor_to_step(image.height)};
  }
  const PixelSize* best = &buckets[0];
  const auto distance = [&](const PixelSize& b) { return std::abs(ratio(image) - ratio(b)); };
  for (const PixelSize& b : buckets) {
    if (distance(b) < distance(*best)) best = &b;
  }
  return *best;
}

PixelSize musubi_resized(PixelSize image, PixelSize bucket) {
  const double scale =
      std::max(static_cast<double>(bucket.width) / static_cast<double>(image.width),
               static_cast<double>(bucket.height) / static_cast<double>(image.height));
  const auto scaled = [&](std::int64_t x) {
    return static_cast<std::int64_t>(static_cast<double>(x) * scale + 0.5);
  };
  return {scaled(image.width), scaled(image.height)};
}

std::optional<FrameExtraction> find_frame_extraction(std::string_view name) {
  for (const auto& [known, mode] : kExtractions) {
    if (known == name) return mode;
  }
  return std::nullopt;
}

std::vector<std::int64_t> musubi_target_frames(std::span<const std::int64_t> wanted) {
  std::vector<std::int64_t> frames;
  for (const std::int64_t f : wanted) frames.push_back(clip_length(f));
  std::sort(frames.begin(), frames.end());
  frames.erase(std::unique(frames.begin(), frames.end()), frames.end());
  return frames;
}

std::vector<Clip> musubi_clips(const ClipRules& rules, std::int64_t n) {
  check(rules.stride > 0, "frame_stride {}", rules.stride);
  if (n < 1) return {};
  std::vector<Clip> clips;
  if (rules.extraction == FrameExtraction::full) {
    clips.push_back({0, clip_length(std::min(n, rules.max_frames))});
    return clips;
  }
  for (const std::int64_t f : musubi_target_frames(rules.target_frames)) {
    add_clips(rules, n, f, clips);
  }
  return clips;
}

std::vector<std::int64_t> musubi_kept_frames(std::int64_t n, double source_fps, double target_fps) {
  std::vector<std::int64_t> kept;
  const double step = target_fps / source_fps;
  double at = 0;  // a running sum and not i * step: where they round apart, the sum decides
  std::int64_t previous = -1;
  for (std::int64_t i = 0; i < n; ++i, at += step) {
    const auto index = static_cast<std::int64_t>(at);
    if (index != previous) kept.push_back(i);
    previous = index;
  }
  return kept;
}

}  // namespace ballast::data
