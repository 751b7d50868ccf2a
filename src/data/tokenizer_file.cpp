#include "data/tokenizer_file.h"

#include <cmath>
#include <span>

#include "core/error.h"
#include "io/name_index.h"
#include "io/utf8.h"
#include "io/weight_file_parts.h"
#include "memory/disk_file.h"
#include "memory/text_file.h"

namespace ballast::data {
namespace {

// The largest in use (UMT5's tokenizer.json) has 17 MB, 256,300 pieces and 2 MB of text in them.
constexpr std::uint64_t kFileBytes = 64 << 20;
constexpr std::uint64_t kPieces = 1'000'000;
constexpr std::uint64_t kPieceBytes = 1024;
constexpr std::uint64_t kAllPieceBytes = 16 << 20;
constexpr double kLargestScore = 1e12;  // sums of these stay far inside f32

void check_size(std::uint64_t bytes, const std::string& path) {
  if (bytes <= kFileBytes) return;
  fail(ErrorCode::input, "{}: tok.limit: the tokenizer has {} bytes, at most {} are read", path,
       bytes, kFileBytes);
}

const SafetensorsEntry& stored_in(const SafetensorsFile& file) {
  if (const SafetensorsEntry* entry = find_stored_tokenizer(file)) return *entry;
  fail(ErrorCode::input,
       fmt::format("{} holds no tokenizer: there is no tensor spiece_model in it", file.path()),
       {{"--tokenizer FILE", "names a tokenizer.json or a spiece.model"}});
}

}  // namespace

bool is_tensor_file(const std::string& path) { return path.ends_with(".safetensors"); }

std::uint64_t tokenizer_bytes(const std::string& path) {
  if (!is_tensor_file(path)) return DiskFile::open(path, DiskMode::buffered).size();
  return stored_in(SafetensorsFile::open(path, DiskMode::buffered)).bytes;
}

std::string read_tokenizer_file(const std::string& path) {
  if (is_tensor_file(path)) {
    const SafetensorsFile tensors = SafetensorsFile::open(path, DiskMode::buffered);
    const SafetensorsEntry& entry = stored_in(tensors);
    check_size(entry.bytes, path);
    std::string stored(entry.bytes, '\0');
    tensors.read(entry, std::as_writable_bytes(std::span(stored)));
    return stored;
  }
  return read_text_file(path, kFileBytes, "tok.limit: a tokenizer");
}

void VocabularyLimits::refuse(const std::string& what, std::uint64_t offset) const {
  fail(ErrorCode::input, "{}: {}: {} at byte offset {}", path_, rule_, what, offset);
}

void VocabularyLimits::add(std::string_view piece, double score, std::uint64_t offset) {
  if (++pieces_ > kPieces) refuse(fmt::format("more than {} pieces", kPieces), offset);
  if (piece.size() > kPieceBytes) {
    refuse(fmt::format("a piece of {} bytes, at most {} are accepted,", piece.size(), kPieceBytes),
           offset);
  }
  bytes_ += piece.size();
  if (bytes_ > kAllPieceBytes) {
    refuse(fmt::format("pieces of more than {} bytes together", kAllPieceBytes), offset);
  }
  if (first_invalid_utf8(piece)) {
    refuse(fmt::format("piece \"{}\" is not UTF-8", printable(piece)), offset);
  }
  if (!(std::abs(score) <= kLargestScore)) {
    refuse(fmt::format("piece \"{}\" has the score {}", printable(piece), score), offset);
  }
}

void check_pieces_are_different(const TokenizerModel& model, std::string_view rule,
                                const std::string& path) {
  NameIndex index;
  const auto name_at = [&](std::uint32_t i) { return std::string_view(model.pieces[i]); };
  for (std::uint32_t i = 0; i < model.pieces.size(); ++i) {
    if (const auto twin = index.insert(model.pieces[i], i, name_at)) {
      fail(ErrorCode::input, "{}: {}: pieces {} and {} are both \"{}\"", path, rule, *twin, i,
           printable(model.pieces[i]));
    }
  }
}

}  // namespace ballast::data
