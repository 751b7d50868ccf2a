#include "io/media_input_ffmpeg.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "core/error.h"
#include "io/limits.h"

namespace ballast {
namespace {

// What is read of strangers' files. No playlists, no formats that name other files.
constexpr const char* kContainers =
    "mov,matroska,avi,flv,asf,mpeg,mpegts,ogg,gif,apng,png_pipe,jpeg_pipe,webp_pipe,bmp_pipe";
// Images only: sound is never decoded.
constexpr const char* kCodecs =
    "h264,hevc,libdav1d,libaom-av1,av1,vp8,vp9,libvpx,libvpx-vp9,mpeg4,msmpeg4v1,msmpeg4v2,msmpeg4,"
    "mpeg1video,mpeg2video,h263,flv,wmv1,wmv2,wmv3,vc1,theora,prores,dnxhd,ffv1,ffvhuff,huffyuv,"
    "utvideo,mjpeg,rawvideo,gif,png,apng,webp,bmp";
constexpr int kBufferBytes = 64 << 10;

int refuse_to_open(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) {
  return AVERROR(EPERM);
}

// A dictionary that cannot be forgotten.
class Options {
 public:
  Options() = default;
  Options(const Options&) = delete;
  ~Options() { ffmpeg().av_dict_free(&dictionary_); }
  void set(const char* key, const char* value) {
    ffmpeg().av_dict_set(&dictionary_, key, value, 0);
  }
  AVDictionary** get() { return &dictionary_; }

 private:
  AVDictionary* dictionary_ = nullptr;
};

std::string pixel_limit() { return fmt::format("{}", limits::kMediaPixels); }

}  // namespace

MediaInput::MediaInput(const SourceFile& file) : file_(file) {
  // A packet may cost a whole buffer after a seek, and small packets may be many.
  budget_ = file.size() * 64 + (256ull << 20);
  try {
    open();
  } catch (...) {
    close();
    throw;
  }
}

MediaInput::~MediaInput() { close(); }

void MediaInput::close() {
  const Ffmpeg& f = ffmpeg();
  if (format_ != nullptr) f.avformat_close_input(&format_);
  if (io_ != nullptr) {
    f.av_free(io_->buffer);
    f.avio_context_free(&io_);
  }
}

int MediaInput::read(void* self, std::uint8_t* to, int bytes) {
  MediaInput& in = *static_cast<MediaInput*>(self);
  const std::uint64_t left = in.file_.size() - std::min(in.at_, in.file_.size());
  const std::uint64_t n = std::min<std::uint64_t>(left, static_cast<std::uint64_t>(bytes));
  if (n == 0) return AVERROR_EOF;
  try {
    if (n > in.budget_) {
      fail(ErrorCode::input, "{}: it leads in circles: 64 times its size was read",
           printable(in.path()));
    }
    in.budget_ -= n;
    in.file_.read(in.at_, {reinterpret_cast<std::byte*>(to), n});
  } catch (...) {
    in.failure_ = std::current_exception();
    return AVERROR_EXIT;
  }
  in.at_ += n;
  return static_cast<int>(n);
}

std::int64_t MediaInput::seek(void* self, std::int64_t offset, int whence) {
  MediaInput& in = *static_cast<MediaInput*>(self);
  const auto size = static_cast<std::int64_t>(in.file_.size());
  whence &= ~AVSEEK_FORCE;
  if (whence == AVSEEK_SIZE) return size;
  const std::int64_t base = whence == SEEK_CUR   ? static_cast<std::int64_t>(in.at_)
                            : whence == SEEK_END ? size
                                                 : 0;
  std::int64_t to = 0;
  if (__builtin_add_overflow(base, offset, &to) || to < 0 || to > size) return AVERROR(EINVAL);
  in.at_ = static_cast<std::uint64_t>(to);
  return to;
}

void MediaInput::check_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

void MediaInput::fail_input(std::string_view what, int code) const {
  check_failure();
  std::string why = code == 0 ? "" : ": " + ffmpeg_error(code);
  fail(ErrorCode::input, "{}: {}{}", printable(path()), what, why);
}

void MediaInput::open() {
  if (file_.size() == 0) fail_input("the file is empty", 0);
  const Ffmpeg& f = ffmpeg();
  auto* const buffer = static_cast<unsigned char*>(f.av_malloc(kBufferBytes));
  if (buffer == nullptr) throw std::bad_alloc();
  io_ = f.avio_alloc_context(buffer, kBufferBytes, 0, this, &read, nullptr, &seek);
  if (io_ == nullptr) {
    f.av_free(buffer);
    throw std::bad_alloc();
  }
  format_ = f.avformat_alloc_context();
  if (format_ == nullptr) throw std::bad_alloc();
  format_->pb = io_;
  format_->io_open = &refuse_to_open;
  Options options;
  options.set("format_whitelist", kContainers);
  options.set("codec_whitelist", kCodecs);
  options.set("protocol_whitelist", "");
  options.set("max_streams", "64");
  // Frees format_ where it fails.
  const int opened = f.avformat_open_input(&format_, "", nullptr, options.get());
  if (opened < 0) fail_input("it is no image or video that can be read", opened);
  // What the container says about rotation goes with the packets; before the first of them is read.
  if (f.inject_side_data != nullptr) f.inject_side_data(format_);
  container_ = format_->iformat->name;
  container_ = container_.substr(0, container_.find(','));
  if (container_.ends_with("_pipe")) {
    still_ = true;
    container_.resize(container_.size() - 5);
  } else {
    std::vector<AVDictionary*> codecs(format_->nb_streams, nullptr);
    for (AVDictionary*& d : codecs) f.av_dict_set(&d, "max_pixels", pixel_limit().c_str(), 0);
    const int found = f.avformat_find_stream_info(format_, codecs.data());
    for (AVDictionary*& d : codecs) f.av_dict_free(&d);
    if (found < 0) fail_input("its streams cannot be understood", found);
  }
  check_failure();
  find_stream();
}

void MediaInput::find_stream() {
  for (unsigned i = 0; i < format_->nb_streams; ++i) {
    AVStream* const s = format_->streams[i];
    // A cover image is no video.
    const bool wanted = stream_ == nullptr && s->codecpar->codec_type == AVMEDIA_TYPE_VIDEO &&
                        (s->disposition & AV_DISPOSITION_ATTACHED_PIC) == 0;
    if (wanted) stream_ = s;
    if (!wanted) s->discard = AVDISCARD_ALL;
  }
  if (stream_ == nullptr) fail_input("it has no images in it", 0);
  const std::int64_t w = stream_->codecpar->width, h = stream_->codecpar->height;
  if (w > limits::kMediaSide || h > limits::kMediaSide || w * h > limits::kMediaPixels) {
    fail_input(fmt::format("{} x {} pixels are more than is read: at most {} on a side and {} in "
                           "all",
                           w, h, limits::kMediaSide, limits::kMediaPixels),
               0);
  }
}

bool MediaInput::next(AVPacket& packet) {
  const Ffmpeg& f = ffmpeg();
  for (;;) {
    f.av_packet_unref(&packet);
    const int got = f.av_read_frame(format_, &packet);
    check_failure();
    if (got == AVERROR_EOF) {
      // An index that names more than the file holds: it was cut at a packet's end.
      const int listed = container_ == "mov" ? f.avformat_index_get_entries_count(stream_) : 0;
      if (packets_ < listed) {
        fail_input(fmt::format("it is cut short: {} of {} frames are there", packets_, listed), 0);
      }
      return false;
    }
    if (got < 0) fail_input(fmt::format("it cannot be read after {} packets", packets_), got);
    if (packet.stream_index != stream_->index) continue;
    if (packets_ == limits::kMediaFrames) {
      fail_input(fmt::format("it has more than {} frames", limits::kMediaFrames), 0);
    }
    if ((packet.flags & AV_PKT_FLAG_CORRUPT) != 0) {
      fail_input(fmt::format("it is broken or cut short at frame {}", packets_), 0);
    }
    ++packets_;
    return true;
  }
}

MediaDecoder::MediaDecoder(const SourceFile& file)
    : input_(file), packet_(ffmpeg().av_packet_alloc()), frame_(ffmpeg().av_frame_alloc()) {
  if (!packet_ || !frame_) throw std::bad_alloc();
  open();
}

void MediaDecoder::open() {
  const Ffmpeg& f = ffmpeg();
  const AVCodecParameters& p = *input_.stream().codecpar;
  const AVCodec* const decoder = f.avcodec_find_decoder(p.codec_id);
  if (decoder == nullptr) {
    input_.fail_input(fmt::format("its codec {} cannot be decoded here",
                                  printable(f.avcodec_get_name(p.codec_id))),
                      0);
  }
  codec_.reset(f.avcodec_alloc_context3(decoder));
  if (!codec_) throw std::bad_alloc();
  f.avcodec_parameters_to_context(codec_.get(), &p);
  codec_->pkt_timebase = input_.stream().time_base;
  codec_->thread_count = 1;  // frames in flight are memory
  codec_->max_pixels = limits::kMediaPixels;
  // An image that is not whole is refused; video decoders say themselves which frames are not.
  if (input_.still()) codec_->err_recognition |= AV_EF_EXPLODE | AV_EF_CRCCHECK;
  Options options;
  options.set("codec_whitelist", kCodecs);
  const int opened = f.avcodec_open2(codec_.get(), decoder, options.get());
  if (opened < 0) {
    input_.fail_input(fmt::format("its codec {} cannot be decoded", decoder->name), opened);
  }
}

AVFrame* MediaDecoder::next() {
  const Ffmpeg& f = ffmpeg();
  for (;;) {
    f.av_frame_unref(frame_.get());
    const int got = f.avcodec_receive_frame(codec_.get(), frame_.get());
    if (got == 0) {
      check_frame();
      ++frames_;
      return frame_.get();
    }
    if (got == AVERROR_EOF) return nullptr;
    if (got != AVERROR(EAGAIN) || drained_) {
      input_.fail_input(fmt::format("frame {} cannot be decoded", frames_), got);
    }
    const bool more = input_.next(*packet_);
    drained_ = !more;
    const int sent = f.avcodec_send_packet(codec_.get(), more ? packet_.get() : nullptr);
    if (sent < 0) {
      input_.fail_input(
          fmt::format(
              "frame {} cannot be decoded: it is damaged, or has more than {} million pixels",
              frames_, limits::kMediaPixels / 1'000'000),
          sent);
    }
  }
}

void MediaDecoder::check_frame() const {
  const AVFrame& frame = *frame_;
  if (frame.decode_error_flags != 0 || (frame.flags & AV_FRAME_FLAG_CORRUPT) != 0) {
    input_.fail_input(fmt::format("frame {} is broken", frames_), 0);
  }
  const std::int64_t w = frame.width, h = frame.height;
  if (w < 1 || h < 1 || w > limits::kMediaSide || h > limits::kMediaSide ||
      w * h > limits::kMediaPixels) {
    input_.fail_input(fmt::format("frame {} has {} x {} pixels: at most {} on a side and {} in all",
                                  frames_, w, h, limits::kMediaSide, limits::kMediaPixels),
                      0);
  }
}

}  // namespace ballast
