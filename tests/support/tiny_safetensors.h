#pragma once

// The golden files of the number formats, read without the project's own reader: these tests stand
// below it.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace ballast::test {

struct TinyTensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;

  std::int64_t elements() const { return static_cast<std::int64_t>(data.size() / size_of(dtype)); }
  template <class T>
  std::vector<T> as() const {
    std::vector<T> v(data.size() / sizeof(T));
    if (!v.empty()) std::memcpy(v.data(), data.data(), data.size());
    return v;
  }
};

inline std::map<std::string, TinyTensor> read_tiny_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const char* text = bytes.data() + 8;
  const auto json = nlohmann::json::parse(text, text + header);
  std::map<std::string, TinyTensor> tensors;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    TinyTensor t;
    t.dtype = dtype_from_safetensors(entry.at("dtype").get<std::string>()).value();
    t.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    const auto range = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
    const auto* begin = reinterpret_cast<const std::byte*>(text + header + range.at(0));
    t.data.assign(begin, begin + (range.at(1) - range.at(0)));
    tensors.emplace(name, std::move(t));
  }
  return tensors;
}

}  // namespace ballast::test
