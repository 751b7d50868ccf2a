#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "core/to_size.h"
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
// pattern in all bytes that are not elements, so that a write beside them is seen. What goes
// through the elements is in sample_tensor.cpp, which is optimised where tests are not.
class SampleTensor {
 public:
  struct Layout {
    std::int64_t row_padding = 0;  // elements between the rows (the last dimension)
    std::int64_t start = 0;        // elements before the first
  };

  SampleTensor(DType dtype, const Shape& shape) : SampleTensor(dtype, shape, Layout()) {}
  SampleTensor(DType dtype, const Shape& shape, Layout layout);

  std::int64_t size() const { return shape_.elements(); }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  TensorView view() { return {address(0), dtype_, shape_, strides_, test_device()}; }
  ConstTensorView view() const {
    return {const_cast<SampleTensor*>(this)->address(0), dtype_, shape_, strides_, test_device()};
  }

  // Element i in row-major order.
  double operator[](std::int64_t i) const;
  void set(std::int64_t i, double value);

  std::vector<double> values() const;
  SampleTensor& fill(const std::vector<double>& v);
  SampleTensor& fill_normal(std::uint32_t seed, double scale = 1);

  // All bytes, padding included: two tensors of one layout are compared bit by bit with this.
  const DeviceVector<std::byte>& bytes() const {
    device_memory_is_read();
    return bytes_;
  }
  bool padding_untouched() const;

 private:
  static constexpr std::byte kPattern{0xa5};

  std::byte* address(std::int64_t i) {
    const std::int64_t at = start_ + i + (i == 0 ? 0 : i / columns_ * padding_);
    return bytes_.data() + to_size(at) * size_of(dtype_);
  }
  // Where the elements of each row lie.
  template <class Visit>
  void each_row(Visit&& visit) const;

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
