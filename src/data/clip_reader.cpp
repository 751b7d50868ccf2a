#include "data/clip_reader.h"

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "io/frame_values.h"

namespace ballast::data {
namespace {

std::size_t bytes_of(PixelSize s) { return to_size(s.width * s.height * 3); }

ImageResizer::Sizes sizes_of(PixelSize from, PixelSize to) {
  return {from.width, from.height, to.width, to.height};
}

}  // namespace

BucketScaler::BucketScaler(MediaDialect dialect, PixelSize from, PixelSize bucket)
    : bucket_(bucket), scaled_(bucket) {
  if (dialect == MediaDialect::diffusion_pipe) {
    const auto sizes = sizes_of(from, bucket);
    resizer_.emplace(sizes, fit_box(sizes), ResizeFilter::bicubic);
    return;
  }
  scaled_ = musubi_resized(from, bucket);
  // Rounding may not take what the bucket needs.
  scaled_ = {std::max(scaled_.width, bucket.width), std::max(scaled_.height, bucket.height)};
  const bool grows = scaled_.width > from.width || scaled_.height > from.height;
  resizer_.emplace(sizes_of(from, scaled_), grows ? ResizeFilter::lanczos : ResizeFilter::area);
  if (scaled_ != bucket) whole_.resize(bytes_of(scaled_));
}

void BucketScaler::scale(std::span<const std::uint8_t> from, std::span<std::uint8_t> to) {
  check(to.size() == bytes_of(bucket_), "a bucket's frame of {} bytes goes to {}",
        bytes_of(bucket_), to.size());
  if (whole_.empty()) return resizer_->resize(from, to);
  resizer_->resize(from, whole_);
  const std::int64_t left = (scaled_.width - bucket_.width) / 2;
  const std::int64_t top = (scaled_.height - bucket_.height) / 2;
  for (std::int64_t y = 0; y < bucket_.height; ++y) {
    const auto row = whole_.begin() + ((top + y) * scaled_.width + left) * 3;
    std::copy(row, row + bucket_.width * 3, to.begin() + y * bucket_.width * 3);
  }
}

ClipReader::ClipReader(MediaReader reader, ClipPlan plan)
    : reader_(std::move(reader)),
      plan_(std::move(plan)),
      scaler_(plan_.dialect, {reader_.info().width, reader_.info().height}, plan_.size),
      source_(reader_.frame_bytes()),
      scaled_(bytes_of(plan_.size)) {}

bool ClipReader::next() {
  if (clip_ + 1 >= static_cast<std::int64_t>(plan_.clips.size())) return false;
  ++clip_;
  position_ = 0;
  const auto& frames = clip().frames;
  std::erase_if(kept_, [&](const auto& k) {
    return !std::binary_search(frames.begin(), frames.end(), k.first);
  });
  return true;
}

const MediaClip& ClipReader::clip() const {
  check(clip_ >= 0, "no clip yet: call next()");
  return plan_.clips[to_size(clip_)];
}

std::size_t ClipReader::frame_values() const { return bytes_of(plan_.size); }

void ClipReader::read(std::span<float> frames) {
  const std::size_t one = frame_values();
  check(frames.size() % one == 0, "{} values for frames of {}", frames.size(), one);
  for (; !frames.empty(); frames = frames.subspan(one)) {
    check(position_ < static_cast<std::int64_t>(clip().frames.size()),
          "more is read than the {} frames of a clip", clip().frames.size());
    to_values(frame(clip().frames[to_size(position_++)]), frames.first(one));
  }
}

bool ClipReader::next_clip_has(std::int64_t index) const {
  const auto at = to_size(clip_ + 1);
  if (at >= plan_.clips.size()) return false;
  const auto& frames = plan_.clips[at].frames;
  return std::binary_search(frames.begin(), frames.end(), index);
}

std::span<const std::uint8_t> ClipReader::frame(std::int64_t index) {
  const auto found = kept_.find(index);
  if (found != kept_.end()) return found->second;
  if (index != scaled_index_) {
    if (index < reader_.position()) reader_.rewind();
    const auto missing = [&] {
      fail(ErrorCode::input, "{}: frame {} is not there, the file has {}",
           printable(reader_.path()), index, reader_.info().frames);
    };
    while (reader_.position() < index) {
      if (!reader_.skip()) missing();
    }
    if (!reader_.next(source_)) missing();
    scaler_.scale(source_, scaled_);
    scaled_index_ = index;
  }
  if (!next_clip_has(index)) return scaled_;
  return kept_.emplace(index, scaled_).first->second;
}

std::vector<float> read_loss_mask(const std::string& path, PixelSize media, PixelSize bucket,
                                  PixelSize latent) {
  const RgbImage mask = read_image(path);
  if (mask.width != media.width || mask.height != media.height) {
    fail(ErrorCode::input, "{}: a mask of {} x {} pixels for media of {} x {}", printable(path),
         mask.width, mask.height, media.width, media.height);
  }
  std::vector<std::uint8_t> scaled(bytes_of(bucket));
  BucketScaler(MediaDialect::diffusion_pipe, media, bucket).scale(mask.pixels, scaled);
  std::vector<float> weights;
  const auto nearest = [](std::int64_t i, std::int64_t from, std::int64_t to) {
    return (2 * i + 1) * from / (2 * to);
  };
  for (std::int64_t y = 0; y < latent.height; ++y) {
    for (std::int64_t x = 0; x < latent.width; ++x) {
      const std::int64_t at = nearest(y, bucket.height, latent.height) * bucket.width +
                              nearest(x, bucket.width, latent.width);
      weights.push_back(static_cast<float>(scaled[to_size(at * 3)]) / 255.f);
    }
  }
  return weights;
}

}  // namespace ballast::data
