#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "tests/support/test_device.h"

namespace ballast::support {

inline std::uint16_t bf16_bits(float x) {  // nearest, ties to even; x is finite
  const auto u = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline float bf16_value(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
inline float f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto fraction = static_cast<float>(bits & 0x3ff);
  const float magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024.0f + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

// A tensor that owns its memory, for tests: any row padding, any start within the allocation, and a
// pattern in all bytes that are not elements, so that a write beside them is seen.
class SampleTensor {
 public:
  struct Layout {
    std::int64_t row_padding = 0;  // elements between the rows (the last dimension)
    std::int64_t start = 0;        // elements before the first
  };

  SampleTensor(DType dtype, const Shape& shape) : SampleTensor(dtype, shape, Layout()) {}
  SampleTensor(DType dtype, const Shape& shape, Layout layout) : dtype_(dtype), shape_(shape) {
    Shape padded = shape;
    if (shape.rank() > 0) padded[-1] += layout.row_padding;
    strides_ = row_major(padded);
    start_ = layout.start;
    columns_ = shape.rank() > 0 ? shape[-1] : 1;
    padding_ = layout.row_padding;
    bytes_.assign(static_cast<std::size_t>(layout.start + padded.elements() + 16) * size_of(dtype),
                  kPattern);
    each_row([&](std::size_t begin, std::size_t end) {
      std::memset(bytes_.data() + begin, 0, end - begin);  // 0 in every dtype
    });
  }

  std::int64_t size() const { return shape_.elements(); }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  TensorView view() { return {address(0), dtype_, shape_, strides_, test_device()}; }
  ConstTensorView view() const {
    return {const_cast<SampleTensor*>(this)->address(0), dtype_, shape_, strides_, test_device()};
  }

  // Element i in row-major order.
  double operator[](std::int64_t i) const {
    device_memory_is_read();
    const std::byte* p = const_cast<SampleTensor*>(this)->address(i);
    switch (dtype_) {
      case DType::f64:
        return read<double>(p);
      case DType::f32:
        return read<float>(p);
      case DType::bf16:
        return bf16_value(read<std::uint16_t>(p));
      case DType::u8:
        return read<std::uint8_t>(p);
      default:
        check(dtype_ == DType::f16, "a sample tensor is not {}", dtype_);
        return f16_value(read<std::uint16_t>(p));
    }
  }
  void set(std::int64_t i, double value) {
    device_memory_is_read();
    std::byte* p = address(i);
    const auto narrow = static_cast<float>(value);
    switch (dtype_) {
      case DType::f64:
        return write(p, value);
      case DType::f32:
        return write(p, narrow);
      case DType::bf16:
        return write(p, bf16_bits(narrow));
      case DType::u8:
        return write(p, static_cast<std::uint8_t>(value));
      default:
        check(dtype_ == DType::f16, "a sample tensor is not {}", dtype_);
        return write(p, nearest_f16(narrow));
    }
  }

  std::vector<double> values() const {
    std::vector<double> v(static_cast<std::size_t>(size()));
    for (std::int64_t i = 0; i < size(); ++i) v[static_cast<std::size_t>(i)] = (*this)[i];
    return v;
  }
  SampleTensor& fill(const std::vector<double>& v) {
    check(static_cast<std::int64_t>(v.size()) == size(), "{} values for {}", v.size(), shape_);
    for (std::int64_t i = 0; i < size(); ++i) set(i, v[static_cast<std::size_t>(i)]);
    return *this;
  }
  SampleTensor& fill_normal(std::uint32_t seed, double scale = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, scale);
    for (std::int64_t i = 0; i < size(); ++i) set(i, normal(random));
    return *this;
  }

  // All bytes, padding included: two tensors of one layout are compared bit by bit with this.
  const DeviceVector<std::byte>& bytes() const {
    device_memory_is_read();
    return bytes_;
  }
  bool padding_untouched() const {
    device_memory_is_read();
    std::size_t at = 0;
    bool untouched = true;
    const auto check_until = [&](std::size_t end) {
      for (; at < end; ++at) untouched = untouched && bytes_[at] == kPattern;
    };
    each_row([&](std::size_t begin, std::size_t end) {
      check_until(begin);
      at = end;
    });
    check_until(bytes_.size());
    return untouched;
  }

 private:
  static constexpr std::byte kPattern{0xa5};

  std::byte* address(std::int64_t i) {
    const std::int64_t at = start_ + i + (i == 0 ? 0 : i / columns_ * padding_);
    return bytes_.data() + static_cast<std::size_t>(at) * size_of(dtype_);
  }
  // Where the elements of each row lie.
  template <class Visit>
  void each_row(Visit&& visit) const {
    const std::size_t element = size_of(dtype_);
    for (std::int64_t i = 0; i < size(); i += columns_) {
      const auto begin = static_cast<std::size_t>(start_ + i + i / columns_ * padding_) * element;
      visit(begin, begin + static_cast<std::size_t>(columns_) * element);
    }
  }
  template <class T>
  static T read(const std::byte* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  template <class T>
  static void write(std::byte* p, T value) {
    std::memcpy(p, &value, sizeof value);
  }
  static std::uint16_t nearest_f16(float x) {  // by halving: the finite values are ordered
    std::uint16_t low = 0, high = 0x7bff;
    while (high - low > 1) {
      const auto middle = static_cast<std::uint16_t>((low + high) / 2);
      (f16_value(middle) <= std::abs(x) ? low : high) = middle;
    }
    const float below = std::abs(x) - f16_value(low), above = f16_value(high) - std::abs(x);
    const std::uint16_t near = below < above || (below == above && low % 2 == 0) ? low : high;
    return static_cast<std::uint16_t>(near | (std::signbit(x) ? 0x8000 : 0));
  }

  DType dtype_;
  Shape shape_, strides_;
  std::int64_t start_ = 0;
  std::int64_t columns_ = 1, padding_ = 0;  // elements of a row and behind it
  DeviceVector<std::byte> bytes_;
};

// Half a unit in the last place of dtype, relative: what one rounding may cost.
inline double rounding(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}

}  // namespace ballast::support
