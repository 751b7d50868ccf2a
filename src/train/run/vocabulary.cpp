#include "train/run/vocabulary.h"

#include <malloc.h>

#include <algorithm>
#include <utility>

#include "data/tokenizer_file.h"

namespace ballast::train {
namespace {

// Bytes of the heap in use.
std::uint64_t heap_in_use() {
  const struct mallinfo2 now = mallinfo2();
  return now.uordblks + now.hblkhd;
}

}  // namespace

Vocabulary Vocabulary::open(const std::string& path) {
  const std::uint64_t before = heap_in_use();
  data::Tokenizer tokenizer = data::Tokenizer::open(path);
  const std::uint64_t now = heap_in_use();
  const std::uint64_t read = 2 * data::tokenizer_bytes(tokenizer.path());
  return {std::move(tokenizer), {now - std::min(before, now) + read}};
}

ProcessLine Vocabulary::line(std::string reason) const {
  return {.name = "vocabulary", .bytes = bytes, .reason = std::move(reason)};
}

}  // namespace ballast::train
