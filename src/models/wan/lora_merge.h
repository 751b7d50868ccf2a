#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "models/wan/lora_read.h"
#include "models/wan/names.h"

namespace ballast::wan {

struct LoraStrength {
  const LoraReader* lora = nullptr;
  double strength = 1;
};

// The weights of a model with LoRAs added, a few rows at a time:
//   W' = W + sum of strength (alpha / rank) up down + sum of strength diff      in f32
// in the order in which the LoRAs are given. Never more in memory than the rows asked for, their
// rows of `up`, and at most 256 rows of `down`. The bits of an element do not depend on which rows
// are asked for together, nor on the number of threads. For one thread at a time.
//
// Fails with ErrorCode::input where shapes disagree or where a LoRA has nothing for this model.
class LoraMerge {
 public:
  static constexpr std::int64_t kRows = 64;  // rows are asked for at multiples of it

  // Checkpoint, names and LoRAs must outlive the merge.
  LoraMerge(const WeightFiles& model, const TensorMap& names, std::span<const LoraStrength> loras,
            ThreadPool& pool);

  bool changes(std::string_view official) const { return deltas_.contains(official); }
  std::int64_t changed() const { return std::ssize(deltas_); }  // tensors
  // Modules of the LoRAs that the model does not have, and keys that mean nothing: "file: key".
  std::span<const std::string> unused() const { return unused_; }

  // A tensor seen as a matrix: its first dimension, and all others.
  static std::int64_t rows_of(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; }
  static std::int64_t columns_of(const Shape& shape);

  // Rows [first, first + count) of a tensor of the model: dequantised, LoRAs added. first is a
  // multiple of kRows, and so is count unless it reaches the last row.
  void rows(const WanTensor& t, std::int64_t first, std::int64_t count, std::span<float> to);

 private:
  struct Delta {
    const LoraNumbers* diff = nullptr;  // added as it is; else the product of the module's factors
    const LoraModule* module = nullptr;
    float factor = 1;
  };

  void collect(const LoraStrength& lora, const TensorMap& names);
  void read_weight(const WanTensor& t, std::int64_t first, std::int64_t count,
                   std::span<float> to) const;
  void add_product(const Delta& d, std::int64_t columns, std::int64_t first, std::int64_t count,
                   std::span<float> to);

  const WeightFiles& model_;
  ThreadPool& pool_;
  std::map<std::string, std::vector<Delta>, std::less<>> deltas_;  // by official tensor name
  std::vector<std::string> unused_;
  std::vector<float> up_, down_, diff_;
  const LoraModule* down_of_ = nullptr;  // whose rows stand in down_, from which on
  std::int64_t down_first_ = 0;
};

struct MergeOptions {
  // Of every floating tensor; none: each as it is. fp8 weights keep their kind of scale, which is
  // computed anew for those that change.
  std::optional<DType> dtype;
  // Called with the bytes of the file written since the last call; in all merged_bytes().
  std::function<void(std::uint64_t)> progress;
};

// Writes the merged model as one safetensors file, atomically, tensor by tensor; names, prefix and
// metadata are those of the model's files. Refuses to start (ErrorCode::io) when the disk has less
// room than merged_bytes().
std::uint64_t merged_bytes(const WeightFiles& model, const TensorMap& names,
                           const MergeOptions& options);
void write_merged(const std::string& path, const WeightFiles& model, const TensorMap& names,
                  LoraMerge& merge, const MergeOptions& options);

}  // namespace ballast::wan
