#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "core/to_size.h"
#include "tests/ref/number_formats.h"
#include "tests/support/test_device.h"

namespace ballast::support {

// Weights of any stored type at any byte of memory, with their values in double.
class SampleWeight {
 public:
  SampleWeight(DType dtype, std::int64_t outputs, std::int64_t inputs, std::size_t start = 0)
      : dtype_(dtype), outputs_(outputs), inputs_(inputs), start_(start) {
    const auto count = to_size(outputs * inputs);
    bytes_.resize(start + count * size_of(dtype) + 1);
    values_.resize(count);
  }

  // Random codes; where one stands for a value beyond 4, zero is taken instead.
  SampleWeight& fill(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const auto code = static_cast<std::uint32_t>(random());
      if (dtype_ == DType::f32) {
        const auto x = static_cast<float>(normal(random));
        std::uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        set(i, bits, x);
      } else if (dtype_ == DType::i8) {
        set(i, code, static_cast<std::int8_t>(code & 0xffu));
      } else {
        const std::uint32_t cut = code & ((1u << ref::format_of(dtype_).bits) - 1u);
        const double value = ref::decode(cut, dtype_);
        const bool fits = value == value && value < 4 && value > -4;
        set(i, fits ? cut : 0, fits ? value : 0);
      }
    }
    return *this;
  }

  void set(std::size_t i, std::uint32_t code, double value) {
    std::memcpy(bytes_.data() + start_ + i * size_of(dtype_), &code, size_of(dtype_));
    values_[i] = value;
  }

  ConstTensorView view() const {
    return {bytes_.data() + start_, dtype_, {outputs_, inputs_}, test_device()};
  }
  DType dtype() const { return dtype_; }
  const std::vector<double>& values() const { return values_; }

  // The values times f32 scales, G for each row, rounded as f32 products are.
  std::vector<double> scaled(const std::vector<float>& scale, std::int64_t groups) const {
    std::vector<double> v = values_;
    const std::int64_t group = inputs_ / groups;
    for (std::int64_t n = 0; n < outputs_; ++n) {
      for (std::int64_t k = 0; k < inputs_; ++k) {
        const auto at = to_size(n * inputs_ + k);
        const auto s = scale.size() == 1 ? 0 : to_size(n * groups + k / group);
        v[at] = static_cast<float>(v[at]) * scale[s];
      }
    }
    return v;
  }

 private:
  DType dtype_;
  std::int64_t outputs_, inputs_;
  std::size_t start_;
  DeviceVector<std::byte> bytes_;
  std::vector<double> values_;
};

}  // namespace ballast::support
