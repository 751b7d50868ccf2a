#include "train/config/prompt_file.h"

#include <algorithm>

#include "core/error.h"
#include "core/random.h"
#include "core/to_size.h"
#include "io/utf8.h"

namespace ballast::train {
namespace {

constexpr std::uint64_t kLongestLine = 64 << 10;
constexpr std::uint64_t kReadAtOnce = 1 << 20;

bool blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }

}  // namespace

PromptFile::PromptFile(const std::string& path) : file_(DiskFile::open(path)) {
  std::vector<char> piece(std::min(kReadAtOnce, file_.size()));
  std::uint64_t start = 0;            // of the line
  std::uint64_t first = 0, last = 0;  // of what is not blank in it, last one behind
  const auto end_line = [&](std::uint64_t end) {
    if (last > first) {
      if (last - first > kLongestLine) {
        fail(ErrorCode::input, "{}: line at byte {} has {} bytes; a prompt has at most {}", path,
             start, last - first, kLongestLine);
      }
      lines_.push_back({.offset = first, .bytes = last - first});
    }
    start = end + 1;
    first = last = 0;
  };
  for (std::uint64_t at = 0; at < file_.size();) {
    const std::uint64_t count = std::min(kReadAtOnce, file_.size() - at);
    file_.read(at, std::as_writable_bytes(std::span(piece).first(count)));
    for (std::uint64_t i = 0; i < count; ++i) {
      const char c = piece[i];
      if (c == '\n') {
        end_line(at + i);
      } else if (!blank(c)) {
        if (last == 0) first = at + i;
        last = at + i + 1;
      }
    }
    at += count;
  }
  end_line(file_.size());
  if (lines_.empty()) {
    fail(ErrorCode::input, fmt::format("{} holds no prompt", path),
         {{"write a prompt on each line", "blank lines do not count"}});
  }
}

std::string PromptFile::at(std::int64_t prompt) const {
  const Line& line = lines_.at(to_size(prompt));
  std::string text(line.bytes, '\0');
  file_.read(line.offset, std::as_writable_bytes(std::span(text)));
  if (first_invalid_utf8(text)) {
    fail(ErrorCode::input, "{}: the prompt at byte {} is not UTF-8: {}", path(), line.offset,
         printable(text));
  }
  return text;
}

// A permutation of [0, prompts) without a table: a Feistel network on the next power of four, whose
// values beyond the end are sent through it again.
std::int64_t prompt_of(std::int64_t prompts, std::uint64_t seed, std::int64_t number) {
  const std::int64_t epoch = number / prompts;
  int half = 1;
  while ((std::int64_t{1} << (2 * half)) < prompts) ++half;
  const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << half) - 1);
  const RandomSource source = random_source(seed, "prompts", epoch, "order");
  auto value = static_cast<std::uint64_t>(number % prompts);
  do {
    auto left = static_cast<std::uint32_t>(value >> half) & mask;
    auto right = static_cast<std::uint32_t>(value) & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint32_t mixed = source.word((round << 40) + right) & mask;
      const std::uint32_t next = left ^ mixed;
      left = right;
      right = next;
    }
    value = std::uint64_t{left} << half | right;
  } while (value >= static_cast<std::uint64_t>(prompts));
  return static_cast<std::int64_t>(value);
}

}  // namespace ballast::train
