#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/to_size.h"
#include "io/limits.h"
#include "io/media_input_ffmpeg.h"
#include "io/media_reader.h"
#include "io/media_text.h"

namespace ballast {
namespace {

// How a stored image becomes the one that is shown: exchange of x and y first, then the flips.
struct Orientation {
  bool transpose = false, flip_x = false, flip_y = false;
};

Orientation of_exif(int value) {
  constexpr Orientation kByValue[] = {{},
                                      {false, true, false},
                                      {false, true, true},
                                      {false, false, true},
                                      {true, false, false},
                                      {true, true, false},
                                      {true, true, true},
                                      {true, false, true}};
  return value >= 1 && value <= 8 ? kByValue[value - 1] : Orientation{};
}

// The matrix says where a stored point goes: x' = a x + c y, y' = b x + d y. Turns that are no
// multiple of a right angle become the nearest one.
Orientation of_matrix(const std::int32_t* m) {
  const double a = m[0], b = m[1], c = m[3], d = m[4];
  if (std::abs(a) >= std::abs(b)) return {false, a < 0, d < 0};
  return {true, c < 0, b < 0};
}

Orientation orientation_of(const AVFrame& frame) {
  const AVFrameSideData* const matrix =
      ffmpeg().av_frame_get_side_data(&frame, AV_FRAME_DATA_DISPLAYMATRIX);
  if (matrix != nullptr && matrix->size >= 9 * sizeof(std::int32_t)) {
    std::int32_t m[9];
    std::memcpy(m, matrix->data, sizeof m);
    return of_matrix(m);
  }
  const AVDictionaryEntry* const exif =
      ffmpeg().av_dict_get(frame.metadata, "Orientation", nullptr, 0);
  return exif != nullptr ? of_exif(std::atoi(exif->value)) : Orientation{};
}

bool full_range(const AVFrame& frame) {
  switch (frame.format) {
    case AV_PIX_FMT_YUVJ420P:
    case AV_PIX_FMT_YUVJ422P:
    case AV_PIX_FMT_YUVJ444P:
    case AV_PIX_FMT_YUVJ440P:
    case AV_PIX_FMT_YUVJ411P:
      return true;
    default:
      return frame.color_range == AVCOL_RANGE_JPEG;
  }
}

// Frames of one size and format to RGB, upright.
class RgbConverter {
 public:
  explicit RgbConverter(std::string path) : path_(std::move(path)) {}

  // `frame` is the first; all that follow have its size.
  void start(const AVFrame& frame) {
    orientation_ = orientation_of(frame);
    width_ = frame.width;
    height_ = frame.height;
    prepare(frame);
  }
  const Orientation& orientation() const { return orientation_; }
  std::int64_t width() const { return orientation_.transpose ? height_ : width_; }
  std::int64_t height() const { return orientation_.transpose ? width_ : height_; }

  // False where the frame has another size than the first.
  bool convert(const AVFrame& frame, std::span<std::uint8_t> pixels) {
    if (frame.width != width_ || frame.height != height_) return false;
    if (frame.format != format_ || frame.colorspace != matrix_ || frame.color_range != range_) {
      prepare(frame);
    }
    ffmpeg().sws_scale(scaler_.get(), frame.data, frame.linesize, 0, height_, rgb_->data,
                       rgb_->linesize);
    place(pixels);
    return true;
  }

 private:
  void prepare(const AVFrame& frame) {
    const Ffmpeg& f = ffmpeg();
    format_ = frame.format;
    matrix_ = frame.colorspace;
    range_ = frame.color_range;
    const AVPixFmtDescriptor* const about =
        f.av_pix_fmt_desc_get(static_cast<AVPixelFormat>(format_));
    alpha_ = about != nullptr && (about->flags & AV_PIX_FMT_FLAG_ALPHA) != 0;
    const AVPixelFormat to = alpha_ ? AV_PIX_FMT_RGBA : AV_PIX_FMT_RGB24;
    scaler_.reset(f.sws_getContext(width_, height_, static_cast<AVPixelFormat>(format_), width_,
                                   height_, to, kExactScaling, nullptr, nullptr, nullptr));
    if (!scaler_) {
      fail(ErrorCode::input, "{}: its pixel format cannot be converted to RGB", printable(path_));
    }
    const int matrix = matrix_ == AVCOL_SPC_UNSPECIFIED ? SWS_CS_DEFAULT : matrix_;
    f.sws_setColorspaceDetails(scaler_.get(), f.sws_getCoefficients(matrix), full_range(frame),
                               f.sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
    rgb_ = new_frame(to, width_, height_);
  }

  // Row by row: on white where there is transparency, turned where the file asks for it.
  void place(std::span<std::uint8_t> pixels) const {
    const std::int64_t w = width(), h = height();
    const std::int64_t channels = alpha_ ? 4 : 3;
    const Orientation& o = orientation_;
    for (std::int64_t y = 0; y < h; ++y) {
      const std::int64_t v = o.flip_y ? h - 1 - y : y;
      std::uint8_t* const row = pixels.data() + y * w * 3;
      for (std::int64_t x = 0; x < w; ++x) {
        const std::int64_t u = o.flip_x ? w - 1 - x : x;
        const std::int64_t sx = o.transpose ? v : u, sy = o.transpose ? u : v;
        const std::uint8_t* const p = rgb_->data[0] + sy * rgb_->linesize[0] + sx * channels;
        for (int c = 0; c < 3; ++c) {
          row[x * 3 + c] =
              alpha_ ? static_cast<std::uint8_t>((p[c] * p[3] + 255 * (255 - p[3]) + 127) / 255)
                     : p[c];
        }
      }
    }
  }

  std::string path_;
  Orientation orientation_;
  int width_ = 0, height_ = 0, format_ = -1;
  AVColorSpace matrix_ = AVCOL_SPC_UNSPECIFIED;
  AVColorRange range_ = AVCOL_RANGE_UNSPECIFIED;
  bool alpha_ = false;
  ScalerPointer scaler_;
  FramePointer rgb_;
};

// Codecs of which every packet is an image that is shown. Others are counted by decoding: VP8 has
// packets that only serve as references, MPEG-4 in AVI has empty ones.
bool packets_are_frames(AVCodecID id) {
  switch (id) {
    case AV_CODEC_ID_H264:
    case AV_CODEC_ID_HEVC:
    case AV_CODEC_ID_AV1:
    case AV_CODEC_ID_VP9:
    case AV_CODEC_ID_MJPEG:
    case AV_CODEC_ID_GIF:
    case AV_CODEC_ID_FFV1:
    case AV_CODEC_ID_PRORES:
      return true;
    default:
      return false;
  }
}

// When each frame is shown, in ticks; AV_NOPTS_VALUE where the file does not say.
std::vector<std::int64_t> frame_ticks(const SourceFile& file) {
  std::vector<std::int64_t> ticks;
  MediaDecoder decoder(file);
  if (packets_are_frames(decoder.input().stream().codecpar->codec_id)) {
    const PacketPointer packet(ffmpeg().av_packet_alloc());
    if (!packet) throw std::bad_alloc();
    while (decoder.input().next(*packet)) {
      if ((packet->flags & AV_PKT_FLAG_DISCARD) == 0) ticks.push_back(packet->pts);
    }
  } else {
    while (const AVFrame* const frame = decoder.next()) {
      ticks.push_back(frame->best_effort_timestamp);
    }
  }
  return ticks;
}

double value_of(AVRational r) {
  return r.den == 0 ? 0 : static_cast<double>(r.num) / static_cast<double>(r.den);
}

// Fills times, fps, duration and constant_rate.
void describe_time(std::vector<std::int64_t> ticks, AVRational tick, double stated_fps,
                   MediaInfo& info) {
  const auto n = static_cast<double>(ticks.size());
  const bool stated = stated_fps >= 1e-3 && stated_fps <= 1e6;
  std::sort(ticks.begin(), ticks.end());
  const bool timed = std::find(ticks.begin(), ticks.end(), AV_NOPTS_VALUE) == ticks.end() &&
                     value_of(tick) > 0 && (ticks.size() < 2 || ticks.back() > ticks.front());
  info.fps = stated ? stated_fps : 25;
  const double span =
      timed ? (static_cast<double>(ticks.back()) - static_cast<double>(ticks.front())) *
                  value_of(tick)
            : 0;
  const double interval = ticks.size() > 1 ? span / (n - 1) : 0;
  if (interval > 0 && (!stated || std::abs(stated_fps * interval - 1) > 0.01)) {
    info.fps = std::clamp(1 / interval, 1e-3, 1e6);
  }
  info.times.resize(ticks.size());
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const double regular = static_cast<double>(i) / info.fps;
    info.times[i] =
        timed ? (static_cast<double>(ticks[i]) - static_cast<double>(ticks[0])) * value_of(tick)
              : regular;
    if (interval > 0 &&
        std::abs(info.times[i] - static_cast<double>(i) * interval) > interval / 2) {
      info.constant_rate = false;
    }
  }
  info.duration = info.constant_rate ? n / info.fps : info.times.back() + interval;
}

}  // namespace

bool media_available() { return true; }

class MediaReader::Impl {
 public:
  explicit Impl(const FileSource& source) : file_(source.open()), converter_(source.path) {
    while_doing("reading " + printable(source.path), [&] {
      restart();
      describe();
    });
  }

  bool next(std::span<std::uint8_t> pixels) {
    const AVFrame* const frame = advance();
    if (frame == nullptr) return false;
    check(pixels.size() == frame_bytes(), "a frame of {} bytes is read into {}", frame_bytes(),
          pixels.size());
    if (!converter_.convert(*frame, pixels)) {
      decoder_->input().fail_input(
          fmt::format("frame {} has {} x {} pixels, those before it have another size",
                      position_ - 1, frame->width, frame->height),
          0);
    }
    return true;
  }

  bool skip() { return advance() != nullptr; }

  void restart() {
    decoder_.reset();
    decoder_ = std::make_unique<MediaDecoder>(file_);
    first_ = decoder_->next();
    if (first_ == nullptr) decoder_->input().fail_input("it has no frame that can be decoded", 0);
    position_ = 0;
  }

  const SourceFile& file() const { return file_; }
  const MediaInfo& info() const { return info_; }
  std::int64_t position() const { return position_; }
  std::size_t frame_bytes() const { return to_size(info_.width * info_.height * 3); }

 private:
  const AVFrame* advance() {
    if (position_ == info_.frames) return nullptr;
    const AVFrame* const frame = first_ != nullptr ? first_ : decoder_->next();
    first_ = nullptr;
    if (frame == nullptr) {
      decoder_->input().fail_input(
          fmt::format("{} of its {} frames can be decoded", position_, info_.frames), 0);
    }
    ++position_;
    return frame;
  }

  void describe() {
    const MediaInput& in = decoder_->input();
    converter_.start(*first_);
    info_.container = in.container();
    info_.codec = ffmpeg().avcodec_get_name(in.stream().codecpar->codec_id);
    info_.width = converter_.width();
    info_.height = converter_.height();
    const Orientation& o = converter_.orientation();
    info_.mirrored = o.flip_x ^ o.flip_y ^ o.transpose;
    // 270 degrees and a mirror are an exchange of x and y alone.
    const bool half = o.transpose ? o.flip_x == false : o.flip_y;
    info_.rotation = (o.transpose ? 90 : 0) + (half ? 180 : 0);
    const AVDictionaryEntry* const comment =
        ffmpeg().av_dict_get(in.format().metadata, "comment", nullptr, 0);
    info_.comment = read_media_text(file_);
    if (info_.comment.empty() && comment != nullptr) {
      info_.comment = std::string_view(comment->value).substr(0, limits::kMediaTextBytes);
    }
    if (in.still()) {
      info_.still = true;
      info_.frames = 1;
      info_.times = {0};
      return;
    }
    // GIF and APNG state none: FFmpeg guesses.
    const bool guessed = info_.container == "gif" || info_.container == "apng";
    const double stated = guessed ? 0 : value_of(in.stream().avg_frame_rate);
    std::vector<std::int64_t> ticks = frame_ticks(file_);
    if (!gif_is_whole(file_)) in.fail_input("it is cut short or its blocks are broken", 0);
    if (ticks.empty()) in.fail_input("it has no frame that is shown", 0);
    describe_time(std::move(ticks), in.stream().time_base, stated, info_);
    info_.frames = static_cast<std::int64_t>(info_.times.size());
    info_.still = info_.frames == 1 && guessed;
  }

  SourceFile file_;
  std::unique_ptr<MediaDecoder> decoder_;
  const AVFrame* first_ = nullptr;  // decoded and not handed out; the decoder's
  RgbConverter converter_;
  MediaInfo info_;
  std::int64_t position_ = 0;
};

MediaReader::MediaReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MediaReader::MediaReader(MediaReader&&) noexcept = default;
MediaReader& MediaReader::operator=(MediaReader&&) noexcept = default;
MediaReader::~MediaReader() = default;

MediaReader MediaReader::open(const FileSource& source) {
  return MediaReader(std::make_unique<Impl>(source));
}

const std::string& MediaReader::path() const { return impl_->file().path(); }
const MediaInfo& MediaReader::info() const { return impl_->info(); }
std::int64_t MediaReader::position() const { return impl_->position(); }
std::size_t MediaReader::frame_bytes() const { return impl_->frame_bytes(); }
bool MediaReader::next(std::span<std::uint8_t> pixels) { return impl_->next(pixels); }
bool MediaReader::skip() { return impl_->skip(); }
void MediaReader::rewind() { impl_->restart(); }

}  // namespace ballast
