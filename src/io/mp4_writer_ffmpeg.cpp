#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/to_size.h"
#include "io/atomic_file.h"
#include "io/media_ffmpeg.h"
#include "io/media_writer.h"

namespace ballast {
namespace {

// RGB rows into a frame that may be one column and one row larger: those repeat the last.
void fill_padded(AVFrame& frame, std::span<const std::uint8_t> pixels, std::int64_t width,
                 std::int64_t height) {
  for (std::int64_t y = 0; y < frame.height; ++y) {
    std::uint8_t* const row = frame.data[0] + y * frame.linesize[0];
    const std::size_t bytes = to_size(width) * 3;
    std::memcpy(row, pixels.data() + std::min(y, height - 1) * width * 3, bytes);
    if (frame.width > width) std::memcpy(row + bytes, row + bytes - 3, 3);
  }
}

class Mp4Writer : public MediaWriter {
 public:
  Mp4Writer(const std::string& path, const MediaOptions& options)
      : options_(options), file_(path), packet_(ffmpeg().av_packet_alloc()) {
    if (!packet_) throw std::bad_alloc();
    try {
      open_encoder();
      rgb_ = new_frame(AV_PIX_FMT_RGB24, codec_->width, codec_->height);
      yuv_ = new_frame(AV_PIX_FMT_YUV420P, codec_->width, codec_->height);
      open_scaler(codec_->width, codec_->height);
      open_file();
    } catch (...) {
      close();
      throw;
    }
  }
  ~Mp4Writer() override { close(); }

  void add(std::span<const std::uint8_t> frame) override {
    const Ffmpeg& f = ffmpeg();
    check(frame.size() == to_size(options_.width * options_.height * 3),
          "a frame of {} bytes for a video of {} x {}", frame.size(), options_.width,
          options_.height);
    fill_padded(*rgb_, frame, options_.width, options_.height);
    if (f.av_frame_make_writable(yuv_.get()) < 0)
      throw std::bad_alloc();  // the encoder may keep it
    f.sws_scale(scaler_.get(), rgb_->data, rgb_->linesize, 0, rgb_->height, yuv_->data,
                yuv_->linesize);
    yuv_->pts = frames_++;
    put(f.avcodec_send_frame(codec_.get(), yuv_.get()), "encode a frame");
    write_packets();
  }

  void finish() override {
    const Ffmpeg& f = ffmpeg();
    check(frames_ > 0, "{}: a video without frames", file_.path());
    put(f.avcodec_send_frame(codec_.get(), nullptr), "encode the last frames");
    write_packets();
    put(f.av_write_trailer(format_), "write the index");
    put(f.avio_closep(&format_->pb), "write the file");
    file_.commit();
  }

 private:
  // The disk may be full: an I/O error, like all that come after the encoder was opened.
  void put(int code, const char* doing) const {
    if (code >= 0) return;
    fail(ErrorCode::io, "{}: cannot {}: {}", printable(file_.path()), doing, ffmpeg_error(code));
  }

  void open_encoder() {
    const Ffmpeg& f = ffmpeg();
    const AVCodec* encoder = f.avcodec_find_encoder_by_name("libx264");
    if (encoder == nullptr) encoder = f.avcodec_find_encoder(AV_CODEC_ID_H264);
    if (encoder == nullptr) {
      fail(ErrorCode::device, "FFmpeg's libraries here have no encoder for H.264",
           {{"an output name that ends in .webp, .gif or .png", "needs none"}});
    }
    codec_.reset(f.avcodec_alloc_context3(encoder));
    if (!codec_) throw std::bad_alloc();
    codec_->width = static_cast<int>(options_.width + options_.width % 2);
    codec_->height = static_cast<int>(options_.height + options_.height % 2);
    codec_->pix_fmt = AV_PIX_FMT_YUV420P;
    codec_->time_base = {options_.rate.seconds, options_.rate.frames};
    codec_->framerate = {options_.rate.frames, options_.rate.seconds};
    codec_->thread_count = 1;  // with more, the bits depend on how many
    codec_->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    if (options_.color == VideoColor::bt709) {
      codec_->colorspace = AVCOL_SPC_BT709;
      codec_->color_primaries = AVCOL_PRI_BT709;
      codec_->color_trc = AVCOL_TRC_BT709;
      codec_->color_range = AVCOL_RANGE_MPEG;
    }
    // Encoders other than libx264 may not know these. Its macroblock tree reads memory that nobody
    // wrote (x264 164, x86-64), so the same images became different files, and it keeps 40 frames
    // more: 54 MB at 832 x 480. Without it files of the same crf are 40 to 75 % larger.
    f.av_opt_set(codec_->priv_data, "preset", "medium", 0);
    f.av_opt_set(codec_->priv_data, "mbtree", "0", 0);
    f.av_opt_set(codec_->priv_data, "crf", fmt::format("{}", options_.crf).c_str(), 0);
    const int opened = f.avcodec_open2(codec_.get(), encoder, nullptr);
    if (opened < 0) {
      fail(ErrorCode::usage,
           "the encoder {} refuses {} x {} pixels at {}/{} frames a "
           "second: {}",
           encoder->name, options_.width, options_.height, options_.rate.frames,
           options_.rate.seconds, ffmpeg_error(opened));
    }
  }

  void open_file() {
    const Ffmpeg& f = ffmpeg();
    // "file:" lets any name be a name. It is written beside our own descriptor, which forces it to
    // disk and gives it its name.
    const std::string url = "file:" + file_.temporary_path();
    put(f.avformat_alloc_output_context2(&format_, nullptr, "mp4", url.c_str()), "start an mp4");
    AVStream* const stream = f.avformat_new_stream(format_, nullptr);
    if (stream == nullptr) throw std::bad_alloc();
    put(f.avcodec_parameters_from_context(stream->codecpar, codec_.get()), "describe the video");
    stream->time_base = codec_->time_base;
    stream->avg_frame_rate = codec_->framerate;
    if (!options_.comment.empty()) {
      f.av_dict_set(&format_->metadata, "comment", options_.comment.c_str(), 0);
    }
    format_->flags |= AVFMT_FLAG_BITEXACT;  // no version of the library in the file
    put(f.avio_open(&format_->pb, url.c_str(), AVIO_FLAG_WRITE), "create the file");
    AVDictionary* options = nullptr;
    f.av_dict_set(&options, "movflags", "+faststart", 0);
    const int begun = f.avformat_write_header(format_, &options);
    f.av_dict_free(&options);
    put(begun, "write the header");
  }

  void open_scaler(int width, int height) {
    const Ffmpeg& f = ffmpeg();
    scaler_.reset(f.sws_getContext(width, height, AV_PIX_FMT_RGB24, width, height,
                                   AV_PIX_FMT_YUV420P, kExactScaling, nullptr, nullptr, nullptr));
    check(scaler_ != nullptr, "no conversion of {} x {} pixels to YUV", width, height);
    const int matrix = options_.color == VideoColor::bt709 ? SWS_CS_ITU709 : SWS_CS_ITU601;
    f.sws_setColorspaceDetails(scaler_.get(), f.sws_getCoefficients(SWS_CS_DEFAULT), 1,
                               f.sws_getCoefficients(matrix), 0, 0, 1 << 16, 1 << 16);
  }

  void write_packets() {
    const Ffmpeg& f = ffmpeg();
    for (;;) {
      const int got = f.avcodec_receive_packet(codec_.get(), packet_.get());
      if (got == AVERROR(EAGAIN) || got == AVERROR_EOF) return;
      put(got, "encode a frame");
      packet_->stream_index = 0;
      packet_->duration = 1;
      f.av_packet_rescale_ts(packet_.get(), codec_->time_base, format_->streams[0]->time_base);
      put(f.av_interleaved_write_frame(format_, packet_.get()), "write a frame");
    }
  }

  void close() {
    if (format_ == nullptr) return;
    if (format_->pb != nullptr) ffmpeg().avio_closep(&format_->pb);
    ffmpeg().avformat_free_context(format_);
    format_ = nullptr;
  }

  MediaOptions options_;
  AtomicFile file_;
  AVFormatContext* format_ = nullptr;
  CodecPointer codec_;
  PacketPointer packet_;
  FramePointer rgb_, yuv_;
  ScalerPointer scaler_;
  std::int64_t frames_ = 0;
};

}  // namespace

std::unique_ptr<MediaWriter> open_mp4(const std::string& path, const MediaOptions& options) {
  return std::make_unique<Mp4Writer>(path, options);
}

}  // namespace ballast
