#pragma once

#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/convert.h"
#include "core/to_size.h"
#include "memory/disk_file.h"
#include "nn/staging_ring.h"
#include "tests/support/temp_dir.h"

namespace ballast::test {

// Tensors one after another in a file of their own, at whatever byte the gaps lead to.
class RawTensorFile {
 public:
  // Random values of about unit size; returns the number of the tensor.
  std::size_t add(const Shape& shape, DType dtype, std::size_t gap) {
    bytes_.append(gap, '\x55');
    const auto n = to_size(shape.elements());
    std::vector<float> values(n);
    std::normal_distribution<float> normal;
    for (float& v : values) v = normal(random_);
    const std::size_t at = bytes_.size();
    bytes_.resize(at + n * size_of(dtype));
    convert(values.data(), DType::f32, bytes_.data() + at, dtype, shape.elements());
    tensors_.push_back({shape, dtype, {nullptr, at, n * size_of(dtype)}});
    return tensors_.size() - 1;
  }

  void open(DiskMode mode) { file_ = DiskFile::open(dir_.write("tensors", bytes_), mode); }
  const std::string& path() const { return file_->path(); }

  StoredBytes stored(std::size_t i) const {
    StoredBytes s = tensors_.at(i);
    s.extent.file = &*file_;
    return s;
  }
  const char* data(std::size_t i) const { return bytes_.data() + tensors_.at(i).extent.offset; }

  // The tensor as the engine should have it: converted in one piece.
  std::string as(std::size_t i, DType dtype) const {
    const StoredBytes& s = tensors_.at(i);
    std::string out(to_size(s.shape.elements()) * size_of(dtype), '\0');
    convert(data(i), s.dtype, out.data(), dtype, s.shape.elements(), Rounding::saturating);
    return out;
  }

 private:
  TempDir dir_;
  std::string bytes_;
  std::vector<StoredBytes> tensors_;
  std::optional<DiskFile> file_;
  std::mt19937 random_{5};
};

// What a contiguous tensor holds, byte by byte.
inline std::string content(const TensorView& v) {
  return {reinterpret_cast<const char*>(v.data), v.bytes()};
}

}  // namespace ballast::test
