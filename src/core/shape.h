#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast {

// Sizes of up to eight dimensions, kept inline: copying a shape allocates nothing.
class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) {
    for (const std::int64_t d : dims) push_back(d);
  }

  void push_back(std::int64_t dim) {
    check(rank_ < kMaxRank, "a shape has at most {} dimensions", kMaxRank);
    dims_[to_size(rank_++)] = dim;
  }

  int rank() const { return rank_; }
  const std::int64_t* begin() const { return dims_.data(); }
  const std::int64_t* end() const { return dims_.data() + rank_; }
  std::int64_t operator[](int i) const { return dims_[to_size(at(i))]; }
  std::int64_t& operator[](int i) { return dims_[to_size(at(i))]; }
  std::int64_t back() const { return (*this)[-1]; }

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (const std::int64_t d : *this) n *= d;
    return n;
  }
  // All dimensions but the last, multiplied: how many rows a row-wise operation sees.
  std::int64_t rows() const { return rank_ == 0 ? 1 : elements_before_last(); }

  friend bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  int at(int i) const { return i < 0 ? rank_ + i : i; }
  std::int64_t elements_before_last() const {
    std::int64_t n = 1;
    for (int i = 0; i + 1 < rank_; ++i) n *= dims_[to_size(i)];
    return n;
  }

  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

std::string to_string(const Shape& s);  // "[40, 5120]"

// Row-major strides, in elements.
Shape row_major(const Shape& shape);

}  // namespace ballast

template <>
struct fmt::formatter<ballast::Shape> : fmt::formatter<std::string_view> {
  auto format(const ballast::Shape& s, fmt::format_context& ctx) const {
    return fmt::formatter<std::string_view>::format(ballast::to_string(s), ctx);
  }
};
