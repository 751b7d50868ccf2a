#include "core/error.h"
#include "io/media_reader.h"
#include "io/media_writer.h"

namespace ballast {
namespace {

[[noreturn]] void no_media() {
  fail(ErrorCode::device, "this build reads and writes no images and videos",
       {{"scripts/setup.sh, then build again with -DBALLAST_MEDIA=ON",
         "FFmpeg's headers were not there when it was built"}});
}

}  // namespace

bool media_available() { return false; }

class MediaReader::Impl {};
MediaReader::MediaReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MediaReader::MediaReader(MediaReader&&) noexcept = default;
MediaReader& MediaReader::operator=(MediaReader&&) noexcept = default;
MediaReader::~MediaReader() = default;
MediaReader MediaReader::open(const FileSource&) { no_media(); }
const std::string& MediaReader::path() const { no_media(); }
const MediaInfo& MediaReader::info() const { no_media(); }
std::int64_t MediaReader::position() const { no_media(); }
std::size_t MediaReader::frame_bytes() const { no_media(); }
MediaReading media_reading(const FileSource&) { no_media(); }
bool MediaReader::next(std::span<std::uint8_t>) { no_media(); }
bool MediaReader::skip() { no_media(); }
void MediaReader::rewind() { no_media(); }

std::unique_ptr<MediaWriter> open_mp4(const std::string&, const MediaOptions&) { no_media(); }
MediaBytes encode_image(ImageCodec, const MediaOptions&, std::span<const std::uint8_t>) {
  no_media();
}

}  // namespace ballast
