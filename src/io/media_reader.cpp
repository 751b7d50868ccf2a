#include "io/media_reader.h"

#include <cstring>
#include <string_view>

#include "core/error.h"
#include "io/media_text.h"

namespace ballast {
namespace {

MediaInfo animation_info(const SourceFile& file, const WebpAnimation& animation) {
  MediaInfo info;
  info.container = "webp";
  info.codec = "webp";
  info.width = animation.width;
  info.height = animation.height;
  info.frames = static_cast<std::int64_t>(animation.durations_ms.size());
  double at = 0;
  for (const std::int64_t ms : animation.durations_ms) {
    info.times.push_back(at);
    at += static_cast<double>(ms) / 1000;
  }
  info.duration = at;
  info.fps = at > 0 ? static_cast<double>(info.frames) / at : 0;
  info.comment = read_media_text(file);
  return info;
}

}  // namespace

MediaInfo probe_media(const FileSource& source) {
  {
    const SourceFile file = source.open();
    const WebpAnimation animation = read_webp_animation(file);
    if (animation.durations_ms.size() > 0) return animation_info(file, animation);
  }
  return MediaReader::open(source).info();
}

RgbImage read_image(const FileSource& source) {
  MediaReader reader = MediaReader::open(source);
  RgbImage image{.width = reader.info().width, .height = reader.info().height};
  image.pixels.resize(reader.frame_bytes());
  check(reader.next(image.pixels), "{} has a frame and none was read", source.path);
  return image;
}

bool looks_like_media(std::span<const std::byte> first) {
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  const auto has = [&](std::size_t at, std::string_view mark) {
    return text.size() >= at + mark.size() && text.substr(at, mark.size()) == mark;
  };
  const auto at = [&](std::size_t i) {
    return i < text.size() ? static_cast<std::uint8_t>(text[i]) : std::uint8_t{0};
  };
  // Two and three bytes alone may be the length that a safetensors file begins with.
  const bool bmp = has(0, "BM") && has(6, std::string_view("\0\0\0\0", 4));
  const bool jpeg = has(0, "\xff\xd8\xff") && at(3) >= 0xc0;
  const bool flv = has(0, "FLV\x01") && at(8) == 9;
  const bool riff = has(0, "RIFF") && (has(8, "WEBP") || has(8, "AVI "));
  const bool mov = has(4, "ftyp") || has(4, "moov") || has(4, "mdat");
  return bmp || jpeg || flv || riff || mov || has(0, "\x89PNG") || has(0, "GIF8") ||
         has(0, "\x1a\x45\xdf\xa3") || has(0, "OggS") ||
         has(0, "\x30\x26\xb2\x75\x8e\x66\xcf\x11") || has(0, std::string_view("\0\0\1\xba", 4));
}

}  // namespace ballast
