#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "io/file_source.h"
#include "io/media_ffmpeg.h"

namespace ballast {

// The packets of a file's image stream, in the order in which they are stored. FFmpeg reads
// through us: it sees the bytes of this file and no name, and what it asks to open besides is
// refused.
class MediaInput {
 public:
  explicit MediaInput(const SourceFile& file);
  MediaInput(const MediaInput&) = delete;
  ~MediaInput();

  const AVFormatContext& format() const { return *format_; }
  const AVStream& stream() const { return *stream_; }
  const std::string& container() const { return container_; }
  bool still() const { return still_; }  // a container of one image
  const std::string& path() const { return file_.path(); }

  bool next(AVPacket& packet);  // false at the end
  // Fails with ErrorCode::input: "PATH: WHAT: FFmpeg's words".
  [[noreturn]] void fail_input(std::string_view what, int code) const;

 private:
  static int read(void* self, std::uint8_t* to, int bytes);
  static std::int64_t seek(void* self, std::int64_t offset, int whence);
  void open();
  void find_stream();
  void check_failure() const;
  void close();

  const SourceFile& file_;
  std::uint64_t at_ = 0;
  std::uint64_t budget_ = 0;  // bytes that may still be read: a file that leads in circles ends
  std::exception_ptr failure_ = {};  // of a read, kept while FFmpeg's frames are on the stack
  AVIOContext* io_ = nullptr;
  AVFormatContext* format_ = nullptr;
  AVStream* stream_ = nullptr;
  std::string container_ = {};
  bool still_ = false;
  std::int64_t packets_ = 0;
};

// The decoded frames of such a file, in the order in which they are shown.
class MediaDecoder {
 public:
  explicit MediaDecoder(const SourceFile& file);

  MediaInput& input() { return input_; }
  // The next frame, valid until the next call; nullptr at the end.
  AVFrame* next();

 private:
  void open();
  void check_frame() const;

  MediaInput input_;
  CodecPointer codec_;
  PacketPointer packet_;
  FramePointer frame_;
  std::int64_t frames_ = 0;
  bool drained_ = false;
};

}  // namespace ballast
