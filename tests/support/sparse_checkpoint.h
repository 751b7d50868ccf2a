#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "core/shape.h"
#include "tests/support/hostile_safetensors.h"
#include "tests/support/temp_dir.h"

namespace ballast::support {

// A safetensors file of any size: the header is real, the data a hole that takes no disk space.
class SparseCheckpoint {
 public:
  void add(const std::string& name, DType dtype, const Shape& shape) {
    std::string dims;
    for (int i = 0; i < shape.rank(); ++i) dims += (i ? "," : "") + std::to_string(shape[i]);
    const std::uint64_t bytes = static_cast<std::uint64_t>(shape.elements()) * size_of(dtype);
    if (!members_.empty()) members_ += ",";
    members_ += test::tensor(name, info(dtype).safetensors_name, "[" + dims + "]",
                             fmt::format("[{},{}]", data_, data_ + bytes));
    data_ += bytes;
  }

  // Writes it and returns its path.
  std::string write() const { return write_below(dir_, "sparse.safetensors"); }
  std::string write_below(const test::TempDir& dir, const std::string& name) const {
    const std::string head = test::safetensors("{" + members_ + "}");
    std::string path = dir.write(name, head);
    std::filesystem::resize_file(path, head.size() + data_);
    return path;
  }

  std::uint64_t data_bytes() const { return data_; }

 private:
  test::TempDir dir_;
  std::string members_;
  std::uint64_t data_ = 0;
};

}  // namespace ballast::support
