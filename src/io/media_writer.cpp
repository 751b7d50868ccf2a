#include "io/media_writer.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "core/to_size.h"
#include "io/atomic_file.h"
#include "io/gif_writer.h"
#include "io/limits.h"
#include "io/utf8.h"

namespace ballast {
namespace {

constexpr std::int64_t kGap = 4;           // pixels between the images of a contact sheet
constexpr std::int64_t kGifSide = 65'535;  // what the fields of the formats hold
constexpr std::int64_t kWebpSide = 16'383;
constexpr std::uint64_t kRiffBytes = 0xfffffff0;

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

MediaBytes png_of(const MediaOptions& options, std::span<const std::uint8_t> frame) {
  MediaBytes png = encode_image(ImageCodec::png, options, frame);
  if (!options.comment.empty()) add_png_text(png, options.comment);
  return png;
}

// A name with the frame's number where exactly one %d stands (%05d and the like too); without any,
// before the ending.
struct NumberedName {
  std::string before, after;
  int digits = 5;

  std::string of(std::int64_t i) const {
    return fmt::format("{}{:0{}}{}", before, i, digits, after);
  }
};

NumberedName numbered_name(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::size_t percent = path.find('%', slash == std::string::npos ? 0 : slash);
  if (percent == std::string::npos) {
    return {path.substr(0, path.size() - 4) + "_", path.substr(path.size() - 4)};
  }
  NumberedName name{path.substr(0, percent), {}, 1};
  std::size_t at = percent + 1;
  if (at < path.size() && path[at] == '0') ++at;
  if (at < path.size() && path[at] >= '1' && path[at] <= '9') name.digits = path[at++] - '0';
  const bool whole = at < path.size() && path[at] == 'd';
  if (whole) name.after = path.substr(at + 1);
  if (!whole || name.after.find('%') != std::string::npos) {
    fail(ErrorCode::usage, "{}: expected one %d, or %05d, for the frame's number", printable(path));
  }
  return name;
}

class PngSequence : public MediaWriter {
 public:
  PngSequence(const std::string& path, const MediaOptions& options)
      : name_(numbered_name(path)), options_(options) {}

  void add(std::span<const std::uint8_t> frame) override {
    write_file(name_.of(frames_++), png_of(options_, frame));
  }
  void finish() override { check(frames_ > 0, "{}: no frames", name_.of(0)); }

 private:
  NumberedName name_;
  MediaOptions options_;
  std::int64_t frames_ = 0;
};

// RIFF: VP8X, ANIM, one ANMF per frame, XMP. The size in front is known at the end, so the frames
// are kept: they are small.
class WebpWriter : public MediaWriter {
 public:
  WebpWriter(const std::string& path, const MediaOptions& options)
      : options_(options), file_(path) {}

  void add(std::span<const std::uint8_t> frame) override {
    const MediaBytes image = encode_image(ImageCodec::webp, options_, frame);
    constexpr std::size_t kRiffHeader = 12;
    check(image.size() > kRiffHeader, "a WebP image of {} bytes", image.size());
    body_ += "ANMF";
    append_u32_le(body_, 16 + image.size() - kRiffHeader);
    append_u24_le(body_, 0);  // at the corner
    append_u24_le(body_, 0);
    append_u24_le(body_, static_cast<std::uint64_t>(options_.width - 1));
    append_u24_le(body_, static_cast<std::uint64_t>(options_.height - 1));
    append_u24_le(body_,
                  static_cast<std::uint64_t>(milliseconds(frames_ + 1) - milliseconds(frames_)));
    body_ += '\x02';  // over the one before, without mixing
    body_.append(image, kRiffHeader);
    ++frames_;
    if (body_.size() > kRiffBytes) {
      fail(ErrorCode::usage, "{}: the frames need more than WebP can hold, 4 GiB",
           printable(file_.path()));
    }
  }

  void finish() override {
    check(frames_ > 0, "{}: a WebP without frames", file_.path());
    const MediaBytes text =
        options_.comment.empty() ? MediaBytes() : webp_text_chunk(options_.comment);
    MediaBytes head;
    head += "RIFF";
    append_u32_le(head, 4 + 18 + 14 + body_.size() + text.size());
    head += "WEBPVP8X";
    append_u32_le(head, 10);
    append_u32_le(head, text.empty() ? 0x02 : 0x06);  // animated; with XMP
    append_u24_le(head, static_cast<std::uint64_t>(options_.width - 1));
    append_u24_le(head, static_cast<std::uint64_t>(options_.height - 1));
    head += "ANIM";
    append_u32_le(head, 6);
    append_u32_le(head, 0xffffffff);  // white behind it
    append_u16_le(head, 0);           // for ever
    file_.write(head);
    file_.write(body_);
    file_.write(text);
    file_.commit();
  }

 private:
  std::int64_t milliseconds(std::int64_t i) const {
    return i * 1000 * options_.rate.seconds / options_.rate.frames;
  }

  MediaOptions options_;
  AtomicFile file_;
  MediaBytes body_;
  std::int64_t frames_ = 0;
};

enum class Format : std::uint8_t { mp4, gif, webp, png };

std::optional<Format> format_of(const std::string& path) {
  for (const auto& [ending, format] :
       {std::pair(".mp4", Format::mp4), std::pair(".gif", Format::gif),
        std::pair(".webp", Format::webp), std::pair(".png", Format::png)}) {
    if (path.ends_with(ending)) return format;
  }
  return std::nullopt;
}

Format checked_format(const std::string& path, const MediaOptions& o) {
  const auto format = format_of(path);
  if (!format) {
    fail(ErrorCode::usage, "{}: expected a name that ends in .mp4, .webp, .gif or .png",
         printable(path));
  }
  const std::int64_t most = *format == Format::webp  ? kWebpSide
                            : *format == Format::gif ? kGifSide
                                                     : limits::kMediaSide;
  if (o.width < 1 || o.height < 1 || o.width > most || o.height > most ||
      o.width * o.height > limits::kMediaPixels) {
    fail(ErrorCode::usage,
         "{}: {} x {} pixels; at most {} on a side and {} in all are "
         "written",
         printable(path), o.width, o.height, most, limits::kMediaPixels);
  }
  if (o.rate.frames < 1 || o.rate.seconds < 1 || o.rate.frames > 1000 * o.rate.seconds) {
    fail(ErrorCode::usage,
         "{}: {} frames in {} s; expected more than none and at most "
         "1000 a second",
         printable(path), o.rate.frames, o.rate.seconds);
  }
  if (o.crf < 0 || o.crf > 51 || o.quality < 0 || o.quality > 100) {
    fail(ErrorCode::usage, "crf {} and quality {}: expected 0 to 51 and 0 to 100", o.crf,
         o.quality);
  }
  if (o.comment.size() > limits::kMediaTextBytes || first_invalid_utf8(o.comment) ||
      o.comment.find('\0') != std::string::npos) {
    fail(ErrorCode::usage, "{}: the comment has more than {} bytes or is no text", printable(path),
         limits::kMediaTextBytes);
  }
  if (*format == Format::png) numbered_name(path);
  return *format;
}

}  // namespace

std::unique_ptr<MediaWriter> open_media_writer(const std::string& path, const MediaOptions& o) {
  switch (checked_format(path, o)) {
    case Format::mp4:
      return open_mp4(path, o);
    case Format::gif:
      return open_gif(path, o);
    case Format::webp:
      return std::make_unique<WebpWriter>(path, o);
    case Format::png:
      return std::make_unique<PngSequence>(path, o);
  }
  check(false, "a format that is none");
  return nullptr;
}

void check_can_write_media(const std::string& path, const MediaOptions& o) {
  switch (checked_format(path, o)) {
    case Format::mp4:
      open_mp4(path, o);
      return;  // removes what it began
    case Format::gif:
      return;
    case Format::webp:
    case Format::png: {
      const bool png = path.ends_with(".png");
      const MediaOptions one{.width = 1, .height = 1};
      const std::vector<std::uint8_t> pixel(3);
      encode_image(png ? ImageCodec::png : ImageCodec::webp, one, pixel);
      return;
    }
  }
}

MediaWriting media_writing(const std::string& path, std::int64_t width, std::int64_t height,
                           std::int64_t frames) {
  const auto pixels = static_cast<std::uint64_t>(width * height);
  // Measured with FFmpeg 5 and x264 164, in bytes for each pixel: 18 for one frame, 51 for five, 65
  // for seven and more, which is as far as the encoder looks; 73 where its threads had to wait for
  // processors, frames with them. Other formats encode frame by frame.
  const auto together = static_cast<std::uint64_t>(
      format_of(path) == Format::mp4 ? std::clamp<std::int64_t>(frames, 1, 9) : 1);
  return {.libraries = format_of(path) == Format::gif ? Bytes{} : kMediaLibraries,
          .encoder = Bytes{pixels * (16 + 8 * together)}};
}

void write_png(const std::string& path, const RgbImage& image, std::string_view comment) {
  check(image.pixels.size() == to_size(image.width * image.height * 3),
        "{} bytes for {} x {} pixels", image.pixels.size(), image.width, image.height);
  const MediaOptions options{
      .width = image.width, .height = image.height, .comment = std::string(comment)};
  checked_format("image.png", options);
  write_file(path, png_of(options, image.pixels));
}

ContactSheet::ContactSheet(std::int64_t width, std::int64_t height, std::int64_t columns)
    : width_(width), height_(height), columns_(columns) {
  check(width > 0 && height > 0 && columns > 0, "a sheet of {} columns of {} x {} pixels", columns,
        width, height);
}

void ContactSheet::add(std::span<const std::uint8_t> frame) {
  check(frame.size() == to_size(width_ * height_ * 3), "a frame of {} bytes for a sheet of {} x {}",
        frame.size(), width_, height_);
  frames_.emplace_back(frame.begin(), frame.end());
}

RgbImage ContactSheet::image() const {
  const auto n = static_cast<std::int64_t>(frames_.size());
  const std::int64_t columns = std::min(columns_, std::max<std::int64_t>(n, 1));
  const std::int64_t rows = (n + columns - 1) / columns;
  RgbImage sheet{.width = columns * (width_ + kGap) + kGap,
                 .height = rows * (height_ + kGap) + kGap};
  sheet.pixels.assign(to_size(sheet.width * sheet.height * 3), 255);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t left = kGap + i % columns * (width_ + kGap);
    const std::int64_t top = kGap + i / columns * (height_ + kGap);
    for (std::int64_t y = 0; y < height_; ++y) {
      const auto from = frames_[to_size(i)].begin() + y * width_ * 3;
      std::copy(from, from + width_ * 3,
                sheet.pixels.begin() + ((top + y) * sheet.width + left) * 3);
    }
  }
  return sheet;
}

std::vector<std::int64_t> evenly_spaced(std::int64_t frames, std::int64_t count) {
  std::vector<std::int64_t> chosen;
  const std::int64_t n = std::min(frames, count);
  for (std::int64_t i = 0; i < n; ++i) {
    chosen.push_back(n == 1 ? 0 : (i * (frames - 1) * 2 + (n - 1)) / ((n - 1) * 2));
  }
  return chosen;
}

}  // namespace ballast
