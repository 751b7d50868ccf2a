#include "data/media_file.h"

#include "core/error.h"
#include "core/path_kind.h"
#include "core/to_size.h"
#include "data/clip_reader.h"
#include "data/media_folder.h"
#include "data/scan.h"
#include "io/frame_values.h"

namespace ballast::data {
namespace {

class FileMedia final : public OpenMedia {
 public:
  explicit FileMedia(const FileSource& source) : source_(source), info_(probe_media(source)) {
    // Described from its chunks alone: FFmpeg has no decoder for it.
    if (info_.container == "webp" && !info_.still) {
      fail(ErrorCode::input, "{}: an animated WebP cannot be decoded; convert it to mp4",
           printable(source.path));
    }
  }

  const MediaInfo& info() const override { return info_; }
  void begin(ClipPlan plan) override {
    clips_.emplace(MediaReader::open(source_), std::move(plan));
  }
  bool next() override { return clips_->next(); }
  void read(std::span<float> frames) override { clips_->read(frames); }

 private:
  FileSource source_;
  MediaInfo info_;
  std::optional<ClipReader> clips_;
};

// Every image is scaled by its own size to the bucket of the first.
class FolderMedia final : public OpenMedia {
 public:
  explicit FolderMedia(const std::string& folder) : images_(image_paths(folder)) {
    if (images_.empty()) {
      fail(ErrorCode::input, "{}: there is no image in this folder", printable(folder));
    }
    const MediaInfo first = probe_media(images_.front());
    info_.container = "images";
    info_.codec = first.codec;
    info_.width = first.width;
    info_.height = first.height;
    info_.frames = std::ssize(images_);
  }

  const MediaInfo& info() const override { return info_; }
  void begin(ClipPlan plan) override {
    plan_ = std::move(plan);
    clip_ = -1;
  }
  bool next() override {
    position_ = 0;
    return ++clip_ < std::ssize(plan_.clips);
  }
  void read(std::span<float> frames) override {
    const auto one = to_size(plan_.size.width * plan_.size.height * 3);
    std::vector<std::uint8_t> scaled(one);
    const MediaClip& clip = plan_.clips[to_size(clip_)];
    for (; !frames.empty(); frames = frames.subspan(one)) {
      const auto frame = clip.frames[position_++];
      const RgbImage image = read_image(images_[to_size(frame)]);
      BucketScaler(plan_.dialect, {image.width, image.height}, plan_.size)
          .scale(image.pixels, scaled);
      to_values(scaled, frames.first(one));
    }
  }

 private:
  std::vector<std::string> images_;
  MediaInfo info_;
  ClipPlan plan_;
  std::int64_t clip_ = -1;
  std::size_t position_ = 0;
};

}  // namespace

std::unique_ptr<OpenMedia> open_media(const FileSource& source) {
  if (!source.is_member() && is_folder(source.path)) {
    return std::make_unique<FolderMedia>(source.path);
  }
  return std::make_unique<FileMedia>(source);
}

std::optional<Bytes> media_bytes(const FileSource& source, PixelSize clip) {
  try {
    FileSource file = source;
    if (!source.is_member() && is_folder(source.path)) {
      const std::vector<std::string> images = image_paths(source.path);
      if (images.empty()) return std::nullopt;
      file = images.front();
    }
    const MediaReading reading = media_reading(file);
    const auto decoded = static_cast<std::uint64_t>(reading.width * reading.height * 3);
    const auto scaled = static_cast<std::uint64_t>(clip.width * clip.height * 3);
    // The frame as decoded; scaled in one direction, whole and cut.
    return reading.bytes + Bytes{decoded + std::max(decoded, scaled) + 2 * scaled};
  } catch (const Error&) {
    return std::nullopt;  // it will be skipped, with its reason
  }
}

}  // namespace ballast::data
