#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "core/to_size.h"

namespace ballast {

// A line of text for the person who waits, cut at so many characters, without the heap. On a
// terminal a longer line would wrap, and then it cannot be rewritten.
class StatusLine {
 public:
  static constexpr int kMaxColumns = 240;

  // Columns of the terminal behind the file, less the last; 79 where nobody knows.
  static int columns_of(std::FILE* file);

  explicit StatusLine(int columns) : left_(to_size(std::clamp(columns, 0, kMaxColumns))) {}

  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    char* const at = text_.data() + size_;
    const std::size_t written = fmt::format_to_n(at, left_, text, std::forward<Args>(args)...).size;
    cut_ = cut_ || written > left_;
    size_ += std::min(written, left_);
    left_ -= std::min(written, left_);
  }

  bool cut() const { return cut_; }  // something had no room

  // On a terminal it erases what stands there; unless it is the last, the cursor goes back to the
  // first column, and whatever is written next, this line again or one of the log, erases it.
  void write(std::FILE* file, bool terminal, bool last);

 private:
  std::array<char, kMaxColumns + 1> text_;
  std::size_t size_ = 0, left_;
  bool cut_ = false;
};

}  // namespace ballast
