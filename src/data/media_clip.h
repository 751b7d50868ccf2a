#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/dataset_options.h"
#include "io/media_reader.h"

namespace ballast::data {

// Which frames of a media file become which clips, and at which size: what a cache encodes. Nothing
// is read here; data/clip_reader.h reads.

enum class MediaDialect : std::uint8_t { diffusion_pipe, musubi };

struct MediaClip {
  Clip clip = {};                         // start and length after the change of frame rate
  std::vector<std::int64_t> frames = {};  // which frames of the file these are, ascending
};

struct ClipPlan {
  MediaDialect dialect = MediaDialect::diffusion_pipe;  // decides how pixels are scaled
  PixelSize size = {};
  std::vector<MediaClip> clips = {};  // none: the file is too short
};

// Both trainers take a file for a video by the ending of its name, small or capital letters.
bool is_video_name(std::string_view name);

// What the bucket rules ask of a file. Of anything but a video the first image counts.
MediaSize media_size(const MediaInfo& info, bool video);

// diffusion-pipe: the frames of the file after the change to `fps`, by repeating or leaving out.
//   n' = trunc(n fps / source fps), frame k is trunc(linspace(0, n - 1, n')[k]), computed in f32.
// Where the file's own rate varies, frame k is the one that is shown at time k / fps;
// diffusion-pipe counts frames there and changes the speed of what moves.
std::vector<std::int64_t> resampled_indices(const MediaInfo& info, double fps);

// diffusion-pipe: the one clip for a bucket of this item (data/bucket_sizes.h). clip_mode is
// single_beginning or single_middle. Fails with ErrorCode::input where the bucket is longer than
// the file.
ClipPlan diffusion_pipe_clip(const MediaInfo& info, bool video, const ClipSize& bucket,
                             std::string_view clip_mode, double fps);

// musubi-tuner: all clips of an item. `fps` is the model's; it matters where the dataset has a
// source_fps.
ClipPlan musubi_media_clips(const MediaInfo& info, const MusubiDataset& dataset, double fps);

}  // namespace ballast::data
