#include "tests/support/sample_tensor.h"

#include <cstring>
#include <random>

#include "core/to_size.h"

namespace ballast::support {
namespace {

template <class T>
T read(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <class T>
void write(std::byte* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

std::uint16_t nearest_f16(float x) {  // by halving: the finite values are ordered
  std::uint16_t low = 0, high = 0x7bff;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (f16_value(middle) <= std::abs(x) ? low : high) = middle;
  }
  const float below = std::abs(x) - f16_value(low), above = f16_value(high) - std::abs(x);
  const std::uint16_t near = below < above || (below == above && low % 2 == 0) ? low : high;
  return static_cast<std::uint16_t>(near | (std::signbit(x) ? 0x8000 : 0));
}

}  // namespace

template <class Visit>
void SampleTensor::each_row(Visit&& visit) const {
  const std::size_t element = size_of(dtype_);
  for (std::int64_t i = 0; i < size(); i += columns_) {
    const auto begin = to_size(start_ + i + i / columns_ * padding_) * element;
    visit(begin, begin + to_size(columns_) * element);
  }
}

SampleTensor::SampleTensor(DType dtype, const Shape& shape, Layout layout)
    : dtype_(dtype), shape_(shape) {
  Shape padded = shape;
  if (shape.rank() > 0) padded[-1] += layout.row_padding;
  strides_ = row_major(padded);
  start_ = layout.start;
  columns_ = shape.rank() > 0 ? shape[-1] : 1;
  padding_ = layout.row_padding;
  bytes_.assign(to_size(layout.start + padded.elements() + 16) * size_of(dtype), kPattern);
  each_row([&](std::size_t begin, std::size_t end) {
    std::memset(bytes_.data() + begin, 0, end - begin);  // 0 in every dtype
  });
}

double SampleTensor::operator[](std::int64_t i) const {
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

void SampleTensor::set(std::int64_t i, double value) {
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

std::vector<double> SampleTensor::values() const {
  std::vector<double> v(to_size(size()));
  for (std::int64_t i = 0; i < size(); ++i) v[to_size(i)] = (*this)[i];
  return v;
}

SampleTensor& SampleTensor::fill(const std::vector<double>& v) {
  check(static_cast<std::int64_t>(v.size()) == size(), "{} values for {}", v.size(), shape_);
  for (std::int64_t i = 0; i < size(); ++i) set(i, v[to_size(i)]);
  return *this;
}

SampleTensor& SampleTensor::fill_normal(std::uint32_t seed, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  for (std::int64_t i = 0; i < size(); ++i) set(i, normal(random));
  return *this;
}

bool SampleTensor::padding_untouched() const {
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

}  // namespace ballast::support
