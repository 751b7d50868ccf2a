#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/media_clip.h"
#include "io/media_reader.h"
#include "io/resize_image.h"

namespace ballast::data {

// An image of any size at a bucket's, as the trainers scale:
//   diffusion_pipe  the largest part in the middle with the bucket's ratio, bicubic, as Pillow's
//                   ImageOps.fit: bit for bit
//   musubi          scaled to cover the bucket, Lanczos as Pillow where it grows, area as OpenCV
//                   where it does not, then the middle is cut out
class BucketScaler {
 public:
  BucketScaler(MediaDialect dialect, PixelSize from, PixelSize bucket);
  // [from.height][from.width][3] to [bucket.height][bucket.width][3].
  void scale(std::span<const std::uint8_t> from, std::span<std::uint8_t> to);

 private:
  PixelSize bucket_, scaled_;
  std::optional<ImageResizer> resizer_;
  std::vector<std::uint8_t> whole_;  // before the middle is cut out
};

// Reads the clips of a plan, frame by frame. Memory: the decoder, a frame of the file, a frame of
// the bucket, and those frames of the clip that the next clip has too (kept_frames() of them). The
// file is decoded once where clips go forward, once more for each target length.
class ClipReader {
 public:
  // `reader` is at any frame of the file that the plan was made for.
  ClipReader(MediaReader reader, ClipPlan plan);

  bool next();  // to the next clip; false after the last
  const MediaClip& clip() const;
  const ClipPlan& plan() const { return plan_; }
  std::size_t frame_values() const;  // of one frame: height * width * 3

  // Fills `frames`, [k][height][width][3] for any k >= 1, with the next k frames of the clip,
  // values in [-1, 1]. Together no more than the clip has. Fails as MediaReader does.
  void read(std::span<float> frames);

  std::size_t kept_frames() const { return kept_.size(); }

 private:
  std::span<const std::uint8_t> frame(std::int64_t index);
  bool next_clip_has(std::int64_t index) const;

  MediaReader reader_;
  ClipPlan plan_;
  BucketScaler scaler_;
  std::int64_t clip_ = -1, position_ = 0;
  std::vector<std::uint8_t> source_, scaled_;
  std::int64_t scaled_index_ = -1;  // of the frame in scaled_
  std::map<std::int64_t, std::vector<std::uint8_t>> kept_;
};

// The loss weights of a mask image, red / 255, for a latent grid: scaled like the media, then the
// nearest pixel ("nearest-exact") of each cell. The mask has the media's size, else
// ErrorCode::input.
std::vector<float> read_loss_mask(const std::string& path, PixelSize media, PixelSize bucket,
                                  PixelSize latent);

}  // namespace ballast::data
