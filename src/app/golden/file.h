#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "io/json_reader.h"
#include "io/weight_files.h"

namespace ballast {

// What the reference says about one of its results.
struct GoldenStats {
  double max = 0;  // largest magnitude
  double rms = 0;
  double err = 0;  // largest difference between its float32 and its float64 run
};

// A tensor in memory, packed and row-major, as golden files store and verify writes them.
struct GoldenTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> data;
  // Which parts count in a comparison: empty means all; else the tensor is cut into counts.size()
  // equal pieces, in order, and piece i counts if counts[i]. For padding rows: B * seq_len pieces.
  std::vector<bool> counts = {};

  ConstTensorView view() const { return {data.data(), dtype, shape}; }
  TensorView view() { return {data.data(), dtype, shape}; }
  std::vector<float> floats() const {  // of a tensor of them
    const float* p = view().as<float>();
    return {p, p + shape.elements()};
  }
  std::vector<double> doubles() const;  // of one of any type
};

// A tensor of zeros.
GoldenTensor golden_tensor(std::string name, DType dtype, const Shape& shape);
GoldenTensor golden_tensor(std::string name, const Shape& shape, std::span<const float> values);

// A safetensors file whose metadata says format = ballast-golden-1: weights, inputs, settings and
// the results expected of them.
class GoldenFile {
 public:
  // Fails with ErrorCode::input when the file is of another kind or its metadata is damaged.
  static GoldenFile open(const std::string& path);

  const std::string& path() const { return checkpoint_.files()[0].path(); }
  std::string name() const;  // of the file, without its folder
  const std::string& case_name() const { return case_; }
  const WeightFiles& checkpoint() const { return checkpoint_; }
  std::span<const SafetensorsEntry> entries() const { return checkpoint_.files()[0].entries(); }

  // The settings; see golden_config.h for reading values that a stranger may have written.
  JsonReader config() const;
  const GoldenStats* stats(std::string_view tensor) const;  // nullptr: none stored

  bool has(std::string_view name) const { return checkpoint_.find(name) != nullptr; }
  // An input or a weight; ErrorCode::input when there is none of that name. A result is refused as
  // a bug of ours: recomputing never looks at what should come out.
  GoldenTensor load(std::string_view name) const;
  // The same when dtype and shape are these, else ErrorCode::input.
  GoldenTensor load(std::string_view name, DType dtype, const Shape& shape) const;
  GoldenTensor expected(std::string_view name) const;  // a stored result

  // Whether a tensor is a result that verify must recompute: out.*, mid.*, grad.*, and in the files
  // about number formats expect.* and table.*, in those about samplers unipc.*, dpmpp.*, euler.*.
  static bool is_result(std::string_view name);

 private:
  explicit GoldenFile(WeightFiles checkpoint) : checkpoint_(std::move(checkpoint)) {}
  void read_stats(std::string_view text);
  GoldenTensor read(std::string_view name) const;

  WeightFiles checkpoint_;
  std::string case_;
  std::map<std::string, GoldenStats, std::less<>> stats_;
};

}  // namespace ballast
