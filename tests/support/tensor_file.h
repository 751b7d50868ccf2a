#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/convert.h"
#include "core/random.h"
#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace ballast::support {

// Random numbers that depend on the seed alone.
inline std::vector<float> sample_values(std::uint64_t seed, std::int64_t n, double scale = 1) {
  std::vector<float> v(to_size(n));
  fill_normal(random_source(seed, "tensor_file", 0, "sample"), 0, v.data(), n);
  for (float& x : v) x = static_cast<float>(scale * x);
  return v;
}

// A small safetensors file with real numbers in it.
class TensorFile {
 public:
  explicit TensorFile(Metadata metadata = {}) : writer_({.metadata = std::move(metadata)}) {}

  TensorFile& add(const std::string& name, DType dtype, const Shape& shape,
                  const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * size_of(dtype));
    convert(values.data(), DType::f32, bytes.data(), dtype, std::ssize(values),
            Rounding::saturating);
    writer_.add(name, dtype, shape, [bytes](const ByteSink& sink) { sink(bytes); });
    return *this;
  }
  TensorFile& add_bytes(const std::string& name, FileDType dtype, const Shape& shape,
                        const std::string& bytes) {
    writer_.add(name, dtype, shape,
                [bytes](const ByteSink& sink) { sink(std::as_bytes(std::span(bytes))); });
    return *this;
  }
  TensorFile& add(const std::string& name, DType dtype, const Shape& shape, std::uint64_t seed,
                  double scale = 1) {
    return add(name, dtype, shape, sample_values(seed, shape.elements(), scale));
  }
  std::string write(const test::TempDir& dir, const std::string& name = "x.safetensors") const {
    writer_.write(dir.path(name), Durability::process);
    return dir.path(name);
  }

 private:
  SafetensorsWriter writer_;
};

// A tensor of a file as f32.
inline std::vector<float> values_in(const std::string& path, const std::string& name) {
  const SafetensorsFile file = SafetensorsFile::open(path, DiskMode::buffered);
  const SafetensorsEntry& e = file.get(name);
  std::vector<std::byte> bytes(e.bytes);
  file.read(e, bytes);
  std::vector<float> v(to_size(e.shape.elements()));
  convert(bytes.data(), file.dtype(e), v.data(), DType::f32, std::ssize(v));
  return v;
}

}  // namespace ballast::support
