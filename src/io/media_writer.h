#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/media_reader.h"
#include "io/media_text.h"

namespace ballast {

struct FrameRate {
  int frames = 16, seconds = 1;  // 24000 frames in 1001 seconds
};

// Which conversion to YUV a video uses.
enum class VideoColor : std::uint8_t {
  bt709,      // and says so, so that every player shows the same colours
  reference,  // BT.601 and says nothing, as Wan's own writer
};

struct MediaOptions {
  std::int64_t width = 0, height = 0;
  FrameRate rate = {};
  int crf = 10;  // H.264: 0 (lossless) to 51; 10 is what Wan's own writer uses
  VideoColor color = VideoColor::bt709;
  int quality = 90;          // WebP: 0 to 100
  std::string comment = {};  // about the images, UTF-8: by custom one JSON object with the
                             // prompt, the seed and the settings. Empty: none is written
};

// Writes frames [height][width][3] one after the other. The file appears under its name complete,
// by finish(), or not at all.
class MediaWriter {
 public:
  virtual ~MediaWriter() = default;
  virtual void add(std::span<const std::uint8_t> frame) = 0;
  virtual void finish() = 0;  // once, after at least one frame
};

// By the ending of the name:
//   .mp4   H.264, yuv420p, preset medium, constant rate, index before the data. The comment is the
//          tag "comment". Odd sizes: the last column or row is there twice, players show it.
//   .gif   256 colours per frame of its own, delays in 1/100 s so that the average is exact. For
//          looking at. The comment is GIF's own.
//   .webp  animated, each frame by itself; delays in ms. The comment is in an XMP chunk.
//   .png   NAME.png becomes NAME_00000.png, NAME_00001.png, ...; "a%03d.png" names them a000.png.
//          Each file appears by itself, as soon as its frame is added; each has the comment.
// ErrorCode::usage for another ending, sizes that the format cannot have, a pattern without exactly
// one %d. GIF needs no FFmpeg.
std::unique_ptr<MediaWriter> open_media_writer(const std::string& path,
                                               const MediaOptions& options);
// Fails as open_media_writer does, before anything was computed: unknown ending, no encoder for it.
void check_can_write_media(const std::string& path, const MediaOptions& options);

// What writing such a file takes beside the frames given to it. libraries: FFmpeg's, from the first
// use to the end of the process.
struct MediaWriting {
  Bytes libraries, encoder;
};
MediaWriting media_writing(const std::string& path, std::int64_t width, std::int64_t height,
                           std::int64_t frames);

// One image, as PNG.
void write_png(const std::string& path, const RgbImage& image, std::string_view comment = {});

// Images side by side, row by row, on white, with a gap of 4 pixels between and around them.
class ContactSheet {
 public:
  ContactSheet(std::int64_t width, std::int64_t height, std::int64_t columns);  // of an image
  void add(std::span<const std::uint8_t> frame);
  RgbImage image() const;

 private:
  std::int64_t width_, height_, columns_;
  std::vector<std::vector<std::uint8_t>> frames_;
};

// `count` of `frames`, first and last among them, as evenly as can be; all where they are fewer.
std::vector<std::int64_t> evenly_spaced(std::int64_t frames, std::int64_t count);

// What the writers are made of, beside GIF: where FFmpeg comes in.
std::unique_ptr<MediaWriter> open_mp4(const std::string& path, const MediaOptions& options);
enum class ImageCodec : std::uint8_t { png, webp };
MediaBytes encode_image(ImageCodec codec, const MediaOptions& options,
                        std::span<const std::uint8_t> frame);

}  // namespace ballast
