#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/log.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include <memory>
#include <string>

// FFmpeg's functions, for the _ffmpeg.cpp files. The libraries are opened by the first call of
// ffmpeg() (docs/decisions/0020): a run that touches no media has none of them in memory.
namespace ballast {

// library, function: one list for the declarations and for loading.
#define BALLAST_FFMPEG_FUNCTIONS(X)             \
  X(avutil, av_dict_free)                       \
  X(avutil, av_dict_get)                        \
  X(avutil, av_dict_set)                        \
  X(avutil, av_frame_alloc)                     \
  X(avutil, av_frame_free)                      \
  X(avutil, av_frame_get_buffer)                \
  X(avutil, av_frame_get_side_data)             \
  X(avutil, av_frame_make_writable)             \
  X(avutil, av_frame_unref)                     \
  X(avutil, av_free)                            \
  X(avutil, av_log_set_callback)                \
  X(avutil, av_malloc)                          \
  X(avutil, av_max_alloc)                       \
  X(avutil, av_opt_set)                         \
  X(avutil, av_opt_set_int)                     \
  X(avutil, av_pix_fmt_desc_get)                \
  X(avutil, av_strerror)                        \
  X(avcodec, av_packet_alloc)                   \
  X(avcodec, av_packet_free)                    \
  X(avcodec, av_packet_rescale_ts)              \
  X(avcodec, av_packet_unref)                   \
  X(avcodec, avcodec_alloc_context3)            \
  X(avcodec, avcodec_find_decoder)              \
  X(avcodec, avcodec_find_encoder)              \
  X(avcodec, avcodec_find_encoder_by_name)      \
  X(avcodec, avcodec_free_context)              \
  X(avcodec, avcodec_get_name)                  \
  X(avcodec, avcodec_open2)                     \
  X(avcodec, avcodec_parameters_from_context)   \
  X(avcodec, avcodec_parameters_to_context)     \
  X(avcodec, avcodec_receive_frame)             \
  X(avcodec, avcodec_receive_packet)            \
  X(avcodec, avcodec_send_frame)                \
  X(avcodec, avcodec_send_packet)               \
  X(avformat, av_interleaved_write_frame)       \
  X(avformat, av_read_frame)                    \
  X(avformat, av_write_trailer)                 \
  X(avformat, avformat_alloc_context)           \
  X(avformat, avformat_alloc_output_context2)   \
  X(avformat, avformat_close_input)             \
  X(avformat, avformat_find_stream_info)        \
  X(avformat, avformat_free_context)            \
  X(avformat, avformat_index_get_entries_count) \
  X(avformat, avformat_new_stream)              \
  X(avformat, avformat_open_input)              \
  X(avformat, avformat_write_header)            \
  X(avformat, avio_alloc_context)               \
  X(avformat, avio_closep)                      \
  X(avformat, avio_context_free)                \
  X(avformat, avio_open)                        \
  X(swscale, sws_freeContext)                   \
  X(swscale, sws_getCoefficients)               \
  X(swscale, sws_getContext)                    \
  X(swscale, sws_scale)                         \
  X(swscale, sws_setColorspaceDetails)

struct Ffmpeg {
#define BALLAST_FFMPEG_DECLARE(library, function) decltype(&::function) function;
  BALLAST_FFMPEG_FUNCTIONS(BALLAST_FFMPEG_DECLARE)
#undef BALLAST_FFMPEG_DECLARE
  // Not in every version: where it is not, frames carry the stream's side data by themselves.
  void (*inject_side_data)(AVFormatContext*) = nullptr;
};

// Fails with ErrorCode::device where a library is missing or of another version than the headers.
// What FFmpeg has to say goes to our log, as debug lines.
const Ffmpeg& ffmpeg();

std::string ffmpeg_error(int code);  // in FFmpeg's words

struct FfmpegDeleter {
  void operator()(AVFrame* p) const { ffmpeg().av_frame_free(&p); }
  void operator()(AVPacket* p) const { ffmpeg().av_packet_free(&p); }
  void operator()(AVCodecContext* p) const { ffmpeg().avcodec_free_context(&p); }
  void operator()(SwsContext* p) const { ffmpeg().sws_freeContext(p); }
};
using FramePointer = std::unique_ptr<AVFrame, FfmpegDeleter>;
using PacketPointer = std::unique_ptr<AVPacket, FfmpegDeleter>;
using CodecPointer = std::unique_ptr<AVCodecContext, FfmpegDeleter>;
using ScalerPointer = std::unique_ptr<SwsContext, FfmpegDeleter>;

// A frame with memory of its own.
FramePointer new_frame(AVPixelFormat format, int width, int height);

// The same bits on every machine: no shortcuts that depend on the processor's vector unit.
inline constexpr int kExactScaling =
    SWS_BICUBIC | SWS_ACCURATE_RND | SWS_BITEXACT | SWS_FULL_CHR_H_INT | SWS_FULL_CHR_H_INP;

}  // namespace ballast
