#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ballast::data {

// Pixels and frames of a bucket's clips.
struct ClipSize {
  std::int64_t width = 0, height = 0, frames = 0;

  friend auto operator<=>(const ClipSize&, const ClipSize&) = default;
};

// What is known of a media file before it is decoded. Images have one frame.
struct MediaSize {
  std::int64_t width = 0, height = 0, frames = 1;
  double fps = 0;  // of a video
};

// The buckets of diffusion-pipe.
//
// By ratio, resolution and frames: every ratio and side length is rounded to three decimals,
// duplicates go, both are sorted. An item takes the ratio nearest in log (the smaller one of two
// equally near), the longest frame bucket that it fills, and is used at every resolution s as
//   w = sqrt(s^2 ar), h = s^2 / w, each rounded half to even to a multiple of `multiple`
// with ((F - 1) / 4) * 4 + 1 frames. A video that only fills the bucket of one frame is dropped.
//
// By size: a list of (w, h, frames). Sorted longest first; of those that the item fills, the one
// whose ratio is nearest in log, and no bucket of one frame for a video. (diffusion-pipe itself
// mixes up two orders here and picks another bucket; this is the rule it means.)
struct BucketRules {
  std::vector<double> ratios = {};         // width / height
  std::vector<double> resolutions = {};    // side lengths
  std::vector<std::int64_t> frames = {1};  // always has 1
  std::vector<ClipSize> sizes = {};        // instead of all of the above
  std::int64_t multiple = 16;              // of widths and heights
  double fps = 16;                         // of the model
};

// Sorts, rounds and checks: finite, positive, and no size that rounds to nothing. Fails with
// ErrorCode::input, message without a file name.
BucketRules checked(BucketRules rules);

// min, ..., max in equal steps of the logarithm, both ends included.
std::vector<double> geometric_ratios(double min, double max, std::int64_t count);

// The buckets the item is used in, one per resolution; none: it is too short.
std::vector<ClipSize> buckets_of(const BucketRules& rules, const MediaSize& media);
// Every bucket that some item could be used in, without duplicates.
std::vector<ClipSize> all_buckets(const BucketRules& rules);

// The parts, as the rules above use them.
double nearest_ratio(std::span<const double> ratios, double width, double height);
std::int64_t round_to_multiple(double x, std::int64_t multiple);  // half to even
std::int64_t clip_length(std::int64_t frames);                    // 24 -> 21, 33 -> 33, 80 -> 77
// Frames after the conversion to the model's frame rate: truncated.
std::int64_t resampled_frames(const MediaSize& media, double fps);

}  // namespace ballast::data
