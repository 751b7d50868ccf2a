#pragma once

#include <algorithm>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/sample_tensor.h"
#include "tests/support/tiny_safetensors.h"

namespace ballast::support {

// A golden file of tests/golden: its tensors, its config, and how far a result may be off.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& name)
      : path_(test::golden_path(name + ".safetensors")),
        tensors_(test::read_tiny_safetensors(path_)) {
    std::ifstream file(path_, std::ios::binary);
    std::uint64_t size = 0;
    file.read(reinterpret_cast<char*>(&size), sizeof size);
    std::string header(size, ' ');
    file.read(header.data(), static_cast<std::streamsize>(size));
    const auto metadata = nlohmann::json::parse(header).at("__metadata__");
    config_ = nlohmann::json::parse(metadata.at("config").get<std::string>());
    stats_ = nlohmann::json::parse(metadata.at("stats").get<std::string>());
  }

  const nlohmann::json& config() const { return config_; }

  SampleTensor operator[](const std::string& name) const {
    const test::TinyTensor& t = tensors_.at(name);
    check(t.dtype == DType::f32, "{} is {}, not f32", name, t.dtype);
    Shape shape;
    for (const std::int64_t d : t.shape) shape.push_back(d);
    SampleTensor s(DType::f32, shape);
    std::memcpy(s.view().data, t.data.data(), t.data.size());
    return s;
  }

  // 20 max(err, 6e-8 max): err is the reference's own f32 error, the factor leaves room for another
  // order of operations.
  double tolerance(const std::string& name) const {
    const auto& s = stats_.at(name);
    return 20 * std::max(s.at("err").get<double>(), 6e-8 * s.at("max").get<double>());
  }

 private:
  std::string path_;
  std::map<std::string, test::TinyTensor> tensors_;
  nlohmann::json config_, stats_;
};

}  // namespace ballast::support
