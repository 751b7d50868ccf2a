#include "core/nearest_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace ballast {
namespace {

// Optimal string alignment: three rows of the table are enough.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] != b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// How often each byte occurs in a text that names are compared with.
class Letters {
 public:
  explicit Letters(std::string_view text) : size_(text.size()) {
    for (const char c : text) ++count_[static_cast<unsigned char>(c)];
  }

  // The edit distance to `name` is at least this: every byte of the longer text that has no partner
  // in the other costs one.
  std::size_t min_distance(std::string_view name) const {
    std::array<std::uint8_t, 256> left = count_;
    std::size_t common = 0;
    for (const char c : name) {
      std::uint8_t& n = left[static_cast<unsigned char>(c)];
      if (n == 0) continue;
      --n;
      ++common;
    }
    return std::max(size_, name.size()) - common;
  }

 private:
  std::array<std::uint8_t, 256> count_{};  // texts have at most 255 bytes
  std::size_t size_;
};

}  // namespace

std::optional<std::string_view> nearest_name(std::string_view typed,
                                             std::span<const std::string_view> known) {
  constexpr std::size_t kLongest = 64;  // nobody mistypes a name into a page of text
  if (typed.size() > kLongest) return std::nullopt;
  std::optional<std::string_view> best;
  std::size_t least = std::max<std::size_t>(1, typed.size() / 3) + 1;
  const Letters letters(typed);
  for (const std::string_view name : known) {
    if (letters.min_distance(name) >= least) continue;  // of most names
    const std::size_t distance = edit_distance(typed, name);
    if (distance >= least) continue;
    least = distance;
    best = name;
  }
  return best;
}

std::string suggestion(std::string_view typed, std::span<const std::string_view> known) {
  const auto near = nearest_name(typed, known);
  return near ? fmt::format(", did you mean {}?", *near) : "";
}

std::string joined(std::span<const std::string_view> names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace ballast
