#include "train/checkpoint/checkpoint_reader.h"

#include <algorithm>

#include "core/error.h"

namespace ballast::train {
namespace {

// The piece that is read and then hashed, while it is still in the processor's cache.
constexpr std::uint64_t kReadPiece = 1 << 20;

}  // namespace

CheckpointReader::CheckpointReader(const std::string& folder, CheckpointManifest::File written)
    : file_(DiskFile::open(folder + "/" + written.name, DiskMode::buffered)),
      written_(std::move(written)) {
  if (file_.size() == written_.bytes) return;
  fail(ErrorCode::input, "{}: has {} bytes, {} were written", file_.path(), file_.size(),
       written_.bytes);
}

void CheckpointReader::read(std::span<std::byte> to) {
  while (!to.empty()) {
    const auto part = to.first(std::min<std::uint64_t>(to.size(), kReadPiece));
    file_.read(at_, part);
    sum_.add(part);
    at_ += part.size();
    to = to.subspan(part.size());
  }
}

void CheckpointReader::pass(std::uint64_t bytes, const ByteSink& sink) {
  piece_.resize(std::max<std::uint64_t>(piece_.size(), std::min(bytes, kReadPiece)));
  while (bytes > 0) {
    const auto part = std::span(piece_).first(std::min<std::uint64_t>(bytes, piece_.size()));
    read(part);
    if (sink) sink(part);
    bytes -= part.size();
  }
}

void CheckpointReader::finish() const {
  check(left() == 0, "{}: {} bytes of a checkpoint were not read", path(), left());
  const std::string found = sum_.text();
  if (found == written_.checksum) return;
  fail(ErrorCode::input,
       fmt::format("{}: its bytes are not those that were written: the checksum is {}, {} when it "
                   "was saved",
                   path(), found, written_.checksum),
       {{"resume from an older checkpoint", "this one was damaged on disk or while it was read"}});
}

std::string read_checked_text(const std::string& folder, const CheckpointManifest::File& written) {
  CheckpointReader reader(folder, written);
  if (reader.size() > kCheckpointTextBytes) {
    fail(ErrorCode::input, "{}: {} bytes are too many", reader.path(), reader.size());
  }
  std::string text(reader.size(), '\0');
  reader.read(std::as_writable_bytes(std::span(text)));
  reader.finish();
  return text;
}

}  // namespace ballast::train
