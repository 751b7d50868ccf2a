#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/trainer_state.h"

namespace ballast::train {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kCommittedFile = "COMMITTED";

// manifest.json of a training checkpoint.
struct CheckpointManifest {
  struct File {
    std::string name;
    std::uint64_t bytes = 0;
    std::string checksum;  // core/checksum.h
  };

  std::int64_t step = 0;
  std::int64_t world_size = 1;
  std::string config_hash, plan_hash, model_hash;
  std::vector<File> files;
};

std::string to_json(const CheckpointManifest& manifest);
// Hostile text is an Error of ErrorCode::input: file names are plain names, checksums are
// checksums.
CheckpointManifest parse_manifest(JsonSource source);

}  // namespace ballast::train
