#pragma once

#include <cstddef>
#include <type_traits>

#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/to_size.h"

namespace ballast {

// Memory that someone else owns, seen as a tensor. Strides are in elements. Byte is std::byte or
// const std::byte; see TensorView and ConstTensorView below.
template <class Byte>
struct BasicTensorView {
  Byte* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Shape strides;
  Device device = Device::cpu;

  BasicTensorView() = default;
  BasicTensorView(Byte* data, DType dtype, const Shape& shape, Device device = Device::cpu)
      : data(data), dtype(dtype), shape(shape), strides(row_major(shape)), device(device) {}
  BasicTensorView(Byte* data, DType dtype, const Shape& shape, const Shape& strides,
                  Device device = Device::cpu)
      : data(data), dtype(dtype), shape(shape), strides(strides), device(device) {}
  // A writable view may be read.
  template <class Other>
  requires(std::is_const_v<Byte> && !std::is_const_v<Other>)
      BasicTensorView(const BasicTensorView<Other>& o)  // NOLINT: the conversion is meant
      : data(o.data), dtype(o.dtype), shape(o.shape), strides(o.strides), device(o.device) {}

  explicit operator bool() const { return data != nullptr; }
  std::int64_t elements() const { return shape.elements(); }
  std::size_t bytes() const { return to_size(elements()) * size_of(dtype); }

  bool contiguous() const {
    std::int64_t step = 1;
    for (int i = shape.rank(); i-- > 0;) {
      if (shape[i] != 1 && strides[i] != step) return false;
      step *= shape[i];
    }
    return true;
  }

  // The elements as T; T must be the type that dtype names (std::uint16_t for f16 and bf16,
  // std::uint8_t for the 8-bit floats).
  template <class T>
  auto as() const {
    using Ptr = std::conditional_t<std::is_const_v<Byte>, const T*, T*>;
    check(sizeof(T) == size_of(dtype), "a {} tensor was read as elements of {} bytes", dtype,
          sizeof(T));
    return reinterpret_cast<Ptr>(data);
  }

  // First dimension cut to [begin, begin + count).
  BasicTensorView rows(std::int64_t begin, std::int64_t count) const {
    check(shape.rank() > 0 && begin >= 0 && count >= 0 && begin + count <= shape[0],
          "rows {}+{} of {}", begin, count, shape);
    BasicTensorView v = *this;
    v.data += to_size(begin * strides[0]) * size_of(dtype);
    v.shape[0] = count;
    return v;
  }
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

}  // namespace ballast
