#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/checkpoint/trainer_state.h"

namespace ballast::train {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kCommittedFile = "COMMITTED";
inline constexpr std::uint64_t kCheckpointTextBytes = 4 << 20;  // its JSON files have a few KB

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

  // Fails (ErrorCode::input) unless exactly one has that name.
  const File& file(const std::string& folder, std::string_view name) const;
};

std::string to_json(const CheckpointManifest& manifest);
// Hostile text is an Error of ErrorCode::input: file names are plain names, checksums are
// checksums.
CheckpointManifest parse_manifest(JsonSource source);
// Of a checkpoint's folder; fails where COMMITTED is not its checksum.
CheckpointManifest read_manifest(const std::string& folder);

}  // namespace ballast::train
