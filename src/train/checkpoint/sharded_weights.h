#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "train/checkpoint/checkpoint.h"

namespace ballast::train {

// How Hugging Face's libraries name the weights of a model.
struct ShardNames {
  std::string stem;  // "model": model.safetensors, model-00001-of-00003.safetensors, ...
  Bytes max_shard;   // above it there are several
  Metadata metadata = {{"format", "pt"}};
};

// One file, or above the limit shards with an index that comes last. Files that an earlier model of
// another number of shards left under the same stem are removed. Returns the paths.
std::vector<std::string> write_sharded(const std::string& folder,
                                       std::span<const SavedTensor> tensors,
                                       const ShardNames& names);

}  // namespace ballast::train
