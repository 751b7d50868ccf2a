#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "infer/video_codec.h"
#include "io/media_writer.h"
#include "io/resize_image.h"

namespace ballast::infer {

struct ClipFile {
  std::string path;  // "": no file of its own, only a sheet
  double fps = 16;
  int crf = 10;
  std::string comment = {};
  std::string sheet = {};       // a contact sheet beside it; "": none
  std::int64_t thumbnails = 0;  // above 0: one in memory, of images that fit a square of so many
                                // pixels a side, which thumbnail_sheet() gives
  bool single_image = false;    // a .png of the only frame, under that very name
};

// Puts decoded frames into a file as they come. It appears under its name complete, or not at all.
class ClipWriter {
 public:
  ClipWriter(ClipFile file, std::int64_t frames);  // of the clip

  void add(const DecodedFrames& frames);  // which are numbers, else ErrorCode::input
  void finish();                          // after the last frame
  RgbImage thumbnail_sheet() const { return thumbnails_->image(); }

 private:
  void open_sheets(const DecodedFrames& frames);

  ClipFile file_;
  std::vector<std::int64_t> shown_;  // on the contact sheet
  std::unique_ptr<MediaWriter> writer_;
  std::optional<ContactSheet> sheet_, thumbnails_;
  std::optional<ImageResizer> shrink_;  // of a frame to a thumbnail; none: it is as large
  std::vector<std::uint8_t> thumbnail_;
  RgbImage frame_;  // the last one
};

}  // namespace ballast::infer
