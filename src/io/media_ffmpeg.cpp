#include "io/media_ffmpeg.h"

#include <dlfcn.h>

#include <array>
#include <cstdarg>
#include <cstdio>

#include "core/error.h"
#include "core/log.h"
#include "core/to_size.h"
#include "io/limits.h"

namespace ballast {
namespace {

void* open_library(const char* name, int version) {
  const std::string file = fmt::format("lib{}.so.{}", name, version);
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    fail(ErrorCode::device,
         fmt::format("{} cannot be loaded: {}", file, why != nullptr ? why : "no reason given"),
         {{"install FFmpeg's libraries of that version", "images and video are read with them"}});
  }
  return library;
}

template <class Function>
void load(Function& function, void* library, const char* name) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    fail(ErrorCode::device, "FFmpeg's libraries have no function {}", name);
  }
}

// Lines may come in parts; a part is a line here. Names and texts of the file may be in them.
void write_log(void*, int level, const char* format, std::va_list arguments) {
  if (level > AV_LOG_INFO || log::level() > log::Level::debug) return;
  std::array<char, 1024> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  std::string_view line = text.data();
  while (line.ends_with('\n')) line.remove_suffix(1);
  if (!line.empty()) log::debug("FFmpeg: {}", printable(line, 400));
}

Ffmpeg load_ffmpeg() {
  void* const avutil = open_library("avutil", LIBAVUTIL_VERSION_MAJOR);
  void* const avcodec = open_library("avcodec", LIBAVCODEC_VERSION_MAJOR);
  void* const avformat = open_library("avformat", LIBAVFORMAT_VERSION_MAJOR);
  void* const swscale = open_library("swscale", LIBSWSCALE_VERSION_MAJOR);
  Ffmpeg f{};
#define BALLAST_FFMPEG_LOAD(library, function) load(f.function, library, #function);
  BALLAST_FFMPEG_FUNCTIONS(BALLAST_FFMPEG_LOAD)
#undef BALLAST_FFMPEG_LOAD
  f.inject_side_data = reinterpret_cast<void (*)(AVFormatContext*)>(
      ::dlsym(avformat, "av_format_inject_global_side_data"));
  f.av_log_set_callback(&write_log);
  // The largest frame that is let in, at eight bytes a pixel.
  f.av_max_alloc(to_size(limits::kMediaPixels) * 8 + (1 << 20));
  return f;
}

}  // namespace

const Ffmpeg& ffmpeg() {
  static const Ffmpeg loaded = load_ffmpeg();
  return loaded;
}

std::string ffmpeg_error(int code) {
  std::array<char, AV_ERROR_MAX_STRING_SIZE> text{};
  ffmpeg().av_strerror(code, text.data(), text.size());
  return text.data();
}

FramePointer new_frame(AVPixelFormat format, int width, int height) {
  FramePointer frame(ffmpeg().av_frame_alloc());
  if (!frame) throw std::bad_alloc();
  frame->format = format;
  frame->width = width;
  frame->height = height;
  if (ffmpeg().av_frame_get_buffer(frame.get(), 0) < 0) throw std::bad_alloc();
  return frame;
}

}  // namespace ballast
