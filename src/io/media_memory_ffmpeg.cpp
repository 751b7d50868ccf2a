#include <algorithm>

#include "io/media_input_ffmpeg.h"
#include "io/media_reader.h"

namespace ballast {
namespace {

// Of the decoder beside pixels: motion vectors and what blocks are (H.264: 40 bytes for 64 pixels).
constexpr double kBytesBesidePixel = 0.75;

// What a decoded-image buffer of H.264 holds at a level, in macroblocks (table A-1 of the
// standard).
std::int64_t h264_macroblocks(int level) {
  if (level <= 0) return 696320;
  if (level <= 11) return 900;
  if (level <= 20) return 2376;
  if (level <= 21) return 4752;
  if (level <= 30) return 8100;
  if (level <= 31) return 18000;
  if (level <= 32) return 20480;
  if (level <= 41) return 32768;
  if (level <= 42) return 34816;
  if (level <= 50) return 110400;
  if (level <= 52) return 184320;
  return 696320;
}

// Images that later ones may refer to.
std::int64_t references(const AVCodecParameters& p) {
  constexpr std::int64_t kMax = 16;
  const std::int64_t blocks = ((p.width + 15) / 16) * std::int64_t{(p.height + 15) / 16};
  switch (p.codec_id) {
    case AV_CODEC_ID_H264:
      return std::clamp<std::int64_t>(h264_macroblocks(p.level) / std::max<std::int64_t>(1, blocks),
                                      1, kMax);
    case AV_CODEC_ID_HEVC:
      return kMax;
    case AV_CODEC_ID_VP9:
    case AV_CODEC_ID_AV1:
      return 8;
    case AV_CODEC_ID_PNG:
    case AV_CODEC_ID_MJPEG:
    case AV_CODEC_ID_WEBP:
    case AV_CODEC_ID_BMP:
      return 0;
    default:
      return 3;
  }
}

}  // namespace

MediaReading media_reading(const FileSource& source) {
  const SourceFile file = source.open();
  const MediaInput input(file);
  const AVCodecParameters& p = *input.stream().codecpar;
  const double pixels = static_cast<double>(std::max(p.width, 0)) * std::max(p.height, 0);
  const AVPixFmtDescriptor* const format =
      ffmpeg().av_pix_fmt_desc_get(static_cast<AVPixelFormat>(p.format));
  double bytes = 8;  // as deep as any
  if (format != nullptr) {
    bytes = 0;
    for (int c = 0; c < format->nb_components; ++c) {
      const bool chroma = (c == 1 || c == 2) && (format->flags & AV_PIX_FMT_FLAG_RGB) == 0;
      const int shift = chroma ? format->log2_chroma_w + format->log2_chroma_h : 0;
      bytes += (format->comp[c].depth > 8 ? 2.0 : 1.0) / (1 << shift);
    }
  }
  // One being decoded, one or two being shown, those that wait for their turn.
  const auto images = static_cast<double>(references(p) + 3 + std::max(p.video_delay, 0));
  // RGB as decoded and as turned.
  const double all = pixels * (images * (bytes + kBytesBesidePixel) + 6);
  return {.width = p.width,
          .height = p.height,
          .bytes = kMediaLibraries + Bytes{static_cast<std::uint64_t>(all)}};
}

}  // namespace ballast
