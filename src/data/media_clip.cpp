#include "data/media_clip.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::data {
namespace {

constexpr std::array<std::string_view, 18> kVideoEndings = {
    "mp4",  "mov", "avi", "mkv",  "webm", "flv", "wmv", "m4v", "mpg",
    "mpeg", "ts",  "mts", "m2ts", "3gp",  "ogv", "asf", "vob", "mjpeg"};

// Frame k of a linspace from 0 to `last` as PyTorch computes it: from both ends to the middle.
std::int64_t linspace_index(std::int64_t k, std::int64_t last, std::int64_t steps) {
  if (steps == 1) return 0;
  const auto end = static_cast<float>(last);
  const float step = end / static_cast<float>(steps - 1);
  const float at =
      k < steps / 2 ? step * static_cast<float>(k) : end - step * static_cast<float>(steps - k - 1);
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(at), 0, last);
}

std::int64_t frame_at(const std::vector<double>& times, double time) {
  // A thousandth of a second: containers round their times to that.
  const auto after = std::upper_bound(times.begin(), times.end(), time + 1e-3);
  return std::max<std::int64_t>(after - times.begin() - 1, 0);
}

MediaClip clip_of(const std::vector<std::int64_t>& frames, const Clip& clip) {
  const auto first = frames.begin() + clip.start;
  return {.clip = clip, .frames = std::vector<std::int64_t>(first, first + clip.frames)};
}

}  // namespace

bool is_video_name(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  const std::string_view ending = name.substr(dot + 1);
  return std::any_of(kVideoEndings.begin(), kVideoEndings.end(), [&](std::string_view known) {
    std::string capital(known);
    for (char& c : capital) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    return ending == known || ending == capital;
  });
}

MediaSize media_size(const MediaInfo& info, bool video) {
  return {.width = info.width,
          .height = info.height,
          .frames = video ? info.frames : 1,
          .fps = video ? info.fps : 0};
}

std::vector<std::int64_t> resampled_indices(const MediaInfo& info, double fps) {
  const std::int64_t n = resampled_frames(media_size(info, true), fps);
  std::vector<std::int64_t> frames;
  for (std::int64_t k = 0; k < n; ++k) {
    frames.push_back(info.constant_rate ? linspace_index(k, info.frames - 1, n)
                                        : frame_at(info.times, static_cast<double>(k) / fps));
  }
  return frames;
}

ClipPlan diffusion_pipe_clip(const MediaInfo& info, bool video, const ClipSize& bucket,
                             std::string_view clip_mode, double fps) {
  ClipPlan plan{.dialect = MediaDialect::diffusion_pipe, .size = {bucket.width, bucket.height}};
  const std::vector<std::int64_t> frames =
      video ? resampled_indices(info, fps) : std::vector<std::int64_t>{0};
  const auto n = static_cast<std::int64_t>(frames.size());
  if (n < bucket.frames) {
    fail(ErrorCode::input, "a clip of {} frames was asked for, at {} frames a second there are {}",
         bucket.frames, fps, n);
  }
  if (clip_mode != "single_beginning" && clip_mode != "single_middle") {
    fail(ErrorCode::input, "video_clip_mode \"{}\": expected single_beginning or single_middle",
         printable(clip_mode));
  }
  const std::int64_t start = clip_mode == "single_middle" ? (n - bucket.frames) / 2 : 0;
  plan.clips.push_back(clip_of(frames, {start, bucket.frames}));
  return plan;
}

ClipPlan musubi_media_clips(const MediaInfo& info, const MusubiDataset& d, double fps) {
  ClipPlan plan{.dialect = MediaDialect::musubi};
  // Videos are always put into buckets and may grow, whatever the file says.
  const auto buckets = musubi_buckets(d.resolution, d.enable_bucket || d.video);
  const bool no_upscale = d.no_upscale && d.enable_bucket && !d.video;
  plan.size = musubi_bucket_of(buckets, d.resolution, {info.width, info.height}, no_upscale);
  if (plan.size.width < 1 || plan.size.height < 1) {
    fail(ErrorCode::input, "{} x {} pixels are fewer than a bucket's step of {}", info.width,
         info.height, kMusubiStep);
  }
  if (!d.video) {
    plan.clips.push_back({.clip = {0, 1}, .frames = {0}});
    return plan;
  }
  std::vector<std::int64_t> frames;
  if (d.source_fps && info.fps > 0) {  // a folder of images has no rate
    frames = musubi_kept_frames(info.frames, *d.source_fps, fps);
  } else {
    frames.resize(to_size(info.frames));
    std::iota(frames.begin(), frames.end(), 0);
  }
  for (const Clip& c : musubi_clips(d.clips, static_cast<std::int64_t>(frames.size()))) {
    plan.clips.push_back(clip_of(frames, c));
  }
  return plan;
}

}  // namespace ballast::data
