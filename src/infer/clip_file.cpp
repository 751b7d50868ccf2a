#include "infer/clip_file.h"

#include <algorithm>
#include <cmath>

#include "core/to_size.h"
#include "infer/finite_output.h"
#include "io/frame_values.h"

namespace ballast::infer {
namespace {

// 16, 24, 23.976: as a fraction with a denominator that every container can have.
FrameRate rate_of(double fps) {
  if (std::floor(fps) == fps) return {.frames = static_cast<int>(fps), .seconds = 1};
  return {.frames = static_cast<int>(std::lround(fps * 1001)), .seconds = 1001};
}

constexpr std::int64_t kSheetImages = 8, kSheetColumns = 4;

}  // namespace

ClipWriter::ClipWriter(ClipFile file, std::int64_t frames)
    : file_(std::move(file)), shown_(evenly_spaced(frames, kSheetImages)) {}

void ClipWriter::open_sheets(const DecodedFrames& f) {
  sheet_.emplace(f.width, f.height, kSheetColumns);
  if (file_.thumbnails <= 0) return;
  const std::int64_t longer = std::max(f.width, f.height);
  const auto side = [&](std::int64_t pixels) {
    return longer <= file_.thumbnails
               ? pixels
               : std::max<std::int64_t>(1, pixels * file_.thumbnails / longer);
  };
  const std::int64_t width = side(f.width), height = side(f.height);
  thumbnails_.emplace(width, height, kSheetColumns);
  thumbnail_.resize(to_size(width * height * 3));
  if (width == f.width && height == f.height) return;
  shrink_.emplace(
      ImageResizer::Sizes{
          .from_width = f.width, .from_height = f.height, .to_width = width, .to_height = height},
      ResizeFilter::area);
}

void ClipWriter::add(const DecodedFrames& f) {
  if (!sheet_) {
    open_sheets(f);
    frame_.width = f.width;
    frame_.height = f.height;
  }
  if (!writer_ && !file_.single_image && !file_.path.empty()) {
    writer_ = open_media_writer(file_.path, {.width = f.width,
                                             .height = f.height,
                                             .rate = rate_of(file_.fps),
                                             .crf = file_.crf,
                                             .comment = file_.comment});
  }
  const auto one = to_size(f.width * f.height * 3);
  frame_.pixels.resize(one);
  for (std::int64_t i = 0; i < f.count; ++i) {
    require_finite(f.pixels.subspan(to_size(i) * one, one),
                   fmt::format("frame {} that the VAE decoded", f.first + i + 1));
    to_bytes(f.pixels.subspan(to_size(i) * one, one), FrameRounding::truncate, frame_.pixels);
    if (writer_) writer_->add(frame_.pixels);
    if (!std::ranges::binary_search(shown_, f.first + i)) continue;
    if (!file_.sheet.empty()) sheet_->add(frame_.pixels);
    if (!thumbnails_) continue;
    if (shrink_) shrink_->resize(frame_.pixels, thumbnail_);
    thumbnails_->add(shrink_ ? thumbnail_ : frame_.pixels);
  }
}

void ClipWriter::finish() {
  if (writer_) {
    writer_->finish();
  } else if (!file_.path.empty()) {
    write_png(file_.path, frame_, file_.comment);
  }
  if (!file_.sheet.empty()) write_png(file_.sheet, sheet_->image(), file_.comment);
}

}  // namespace ballast::infer
