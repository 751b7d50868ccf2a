#include <cstring>

#include "core/error.h"
#include "core/to_size.h"
#include "io/media_ffmpeg.h"
#include "io/media_writer.h"

namespace ballast {
namespace {

FramePointer frame_for(ImageCodec codec, const MediaOptions& o,
                       std::span<const std::uint8_t> pixels) {
  const int w = static_cast<int>(o.width), h = static_cast<int>(o.height);
  const AVPixelFormat to = codec == ImageCodec::png ? AV_PIX_FMT_RGB24 : AV_PIX_FMT_BGRA;
  FramePointer frame = new_frame(to, w, h);
  for (int y = 0; y < h; ++y) {
    const std::uint8_t* from = pixels.data() + static_cast<std::ptrdiff_t>(y) * w * 3;
    std::uint8_t* row = frame->data[0] + static_cast<std::ptrdiff_t>(y) * frame->linesize[0];
    if (codec == ImageCodec::png) {
      std::memcpy(row, from, to_size(w) * 3);
      continue;
    }
    for (int x = 0; x < w; ++x, from += 3, row += 4) {
      row[0] = from[2];
      row[1] = from[1];
      row[2] = from[0];
      row[3] = 255;
    }
  }
  return frame;
}

}  // namespace

MediaBytes encode_image(ImageCodec codec, const MediaOptions& o,
                        std::span<const std::uint8_t> pixels) {
  const Ffmpeg& f = ffmpeg();
  const bool png = codec == ImageCodec::png;
  const AVCodec* const encoder = f.avcodec_find_encoder_by_name(png ? "png" : "libwebp");
  if (encoder == nullptr) {
    fail(ErrorCode::device,
         fmt::format("FFmpeg's libraries here have no encoder for {}", png ? "PNG" : "WebP"),
         {{"an output name that ends in .gif", "needs none"}});
  }
  const FramePointer frame = frame_for(codec, o, pixels);
  const CodecPointer context(f.avcodec_alloc_context3(encoder));
  const PacketPointer packet(f.av_packet_alloc());
  if (!context || !packet) throw std::bad_alloc();
  context->width = frame->width;
  context->height = frame->height;
  context->pix_fmt = static_cast<AVPixelFormat>(frame->format);
  context->time_base = {1, 1};
  context->thread_count = 1;
  if (!png) f.av_opt_set(context->priv_data, "quality", fmt::format("{}", o.quality).c_str(), 0);
  int code = f.avcodec_open2(context.get(), encoder, nullptr);
  if (code >= 0) code = f.avcodec_send_frame(context.get(), frame.get());
  if (code >= 0) code = f.avcodec_send_frame(context.get(), nullptr);
  if (code >= 0) code = f.avcodec_receive_packet(context.get(), packet.get());
  if (code < 0) {
    fail(ErrorCode::usage, "an image of {} x {} pixels cannot become {}: {}", o.width, o.height,
         png ? "PNG" : "WebP", ffmpeg_error(code));
  }
  const auto* const bytes = reinterpret_cast<const char*>(packet->data);
  return {bytes, to_size(packet->size)};
}

}  // namespace ballast
