#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "io/file_source.h"

namespace ballast {

// Whether this program can read and write images and video: it was built with FFmpeg's headers
// (BALLAST_MEDIA). Without, everything below and in media_writer.h that needs FFmpeg fails with
// ErrorCode::device and says how to get it.
bool media_available();

// FFmpeg's libraries with their tables and the index of a file that is read, from the first use to
// the end of the process (measured: 5.2 MB loaded, 7.5 MB reading, with FFmpeg 5).
constexpr Bytes kMediaLibraries{9 << 20};

// Pixels [height][width][3], red green blue, 8 bits each.
struct RgbImage {
  std::int64_t width = 0, height = 0;
  std::vector<std::uint8_t> pixels = {};
};

struct MediaInfo {
  std::string container = {};          // "mov", "matroska", "png", ...
  std::string codec = {};              // "h264"
  std::int64_t width = 0, height = 0;  // as shown: after the rotation
  int rotation = 0;                    // degrees clockwise that the file asks for: 0, 90, 180, 270
  bool mirrored = false;               // left and right exchanged as well
  bool still = false;                  // an image
  std::int64_t frames = 0;             // counted
  double fps = 0;                      // average; 0 for a still image
  double duration = 0;                 // seconds
  bool constant_rate = true;           // no frame is half an interval from its regular place
  std::vector<double> times = {};      // seconds from the first frame, ascending, one per frame
  std::string comment = {};            // what the file says about itself (media_writer.h)
};

// Reads the frames of a video or an image, in the order in which they are shown, one at a time:
// memory is that of the decoder and two frames, however long the file is.
//
// Containers: mp4/mov, Matroska/WebM, AVI, FLV, ASF/WMV, MPEG, Ogg, GIF, APNG, PNG, JPEG, WebP (not
// animated), BMP. What is in the file is looked at, not its name. Nothing but this file is opened:
// no network, no playlists, no references to other files.
//
// Files come from strangers. Anything that is broken, cut short, or larger than io/limits.h allows
// is an Error of ErrorCode::input that names the file and, where there is one, the frame; a frame
// that the decoder had to patch up is broken. ErrorCode::io where the system cannot read it.
//
// Frames are turned as the file asks for (display matrix, EXIF orientation of JPEG and WebP),
// transparency is put on white, deeper samples become 8 bits. Conversion from YUV uses the file's
// matrix and range (BT.601 limited where it says nothing) with FFmpeg's exact arithmetic, chroma
// interpolated bicubically: the same bits on every machine. Pixels that are not square stay as
// they are stored, as the trainers leave them.
class MediaReader {
 public:
  static MediaReader open(const FileSource& source);
  MediaReader(MediaReader&&) noexcept;
  MediaReader& operator=(MediaReader&&) noexcept;
  ~MediaReader();

  const std::string& path() const;
  const MediaInfo& info() const;
  std::int64_t position() const;  // of the frame that comes next
  std::size_t frame_bytes() const;

  // Fills `pixels` (frame_bytes()) with the next frame; false after the last one. Fails where fewer
  // frames can be decoded than were counted.
  bool next(std::span<std::uint8_t> pixels);
  bool skip();    // decodes the next frame and drops it
  void rewind();  // to the first frame

 private:
  class Impl;
  explicit MediaReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What a file is. Decodes the first frame, so a file that cannot be read fails here. An animated
// WebP is described from its chunks; its pixels cannot be read (FFmpeg 5 has no decoder for it).
MediaInfo probe_media(const FileSource& source);

// What a file's header says of reading it. bytes: memory that it takes at most, for the libraries,
// the decoder's images, a frame on its way to RGB. Fails as MediaReader::open() does for what is
// no media.
struct MediaReading {
  std::int64_t width = 0, height = 0;
  Bytes bytes;
};
MediaReading media_reading(const FileSource& source);

// An image, or the first frame of anything else.
RgbImage read_image(const FileSource& source);

// Whether the first bytes are of a container that MediaReader may know. Opens no library.
bool looks_like_media(std::span<const std::byte> first_bytes);

}  // namespace ballast
