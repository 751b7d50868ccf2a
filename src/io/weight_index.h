#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/name_index.h"

namespace ballast {

// What a `*.index.json` says: which shard file holds which tensor.
struct WeightIndex {
  struct Mapping {
    std::string_view name;  // lives as long as the text it was read from and this index
    std::uint32_t shard;
  };

  std::vector<std::string> shards;  // relative to the index, proven not to leave its folder
  std::vector<Mapping> weight_map;  // each name once
  std::optional<std::uint64_t> total_size;
  NamePool names;
};

// Refuses with ErrorCode::input and one of the rules index.json, index.weight_map,
// index.shard_name, index.duplicate_name, index.limit. A total_size that is missing or is not an
// integer is nullopt.
WeightIndex parse_weight_index(std::string_view text, const std::string& path);

}  // namespace ballast
