#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/bucket_sizes.h"
#include "io/pixel_size.h"

namespace ballast::data {

// Which pixels and frames musubi-tuner makes clips of.

inline constexpr std::int64_t kMusubiStep = 16;  // of Wan's bucket sizes

// All buckets of about the area of `resolution`, sorted; only `resolution` itself without
// bucketing.
std::vector<PixelSize> musubi_buckets(PixelSize resolution, bool enable_bucket);

// The bucket whose ratio differs least (linearly; the first of equals). no_upscale: images of no
// more area than `resolution` keep their size, cut to multiples of the step; only with bucketing.
PixelSize musubi_bucket_of(std::span<const PixelSize> buckets, PixelSize resolution,
                           PixelSize image, bool no_upscale);

// The size an image is scaled to before the middle of it is cut out.
PixelSize musubi_resized(PixelSize image, PixelSize bucket);

enum class FrameExtraction : std::uint8_t { head, chunk, slide, uniform, full };
std::optional<FrameExtraction> find_frame_extraction(std::string_view name);

struct ClipRules {
  std::vector<std::int64_t> target_frames = {1};
  FrameExtraction extraction = FrameExtraction::head;
  std::int64_t stride = 1;        // slide
  std::int64_t samples = 1;       // uniform
  std::int64_t max_frames = 129;  // full
};

struct Clip {
  std::int64_t start = 0, frames = 0;

  friend auto operator<=>(const Clip&, const Clip&) = default;
};

// target_frames as they are used: rounded down to 4k + 1, without duplicates, sorted.
std::vector<std::int64_t> musubi_target_frames(std::span<const std::int64_t> wanted);

// The clips of a video of n frames, per target length in ascending order.
std::vector<Clip> musubi_clips(const ClipRules& rules, std::int64_t n);

// Source frames that are kept when source_fps becomes target_fps: by dropping, never doubling.
std::vector<std::int64_t> musubi_kept_frames(std::int64_t n, double source_fps, double target_fps);

}  // namespace ballast::data
