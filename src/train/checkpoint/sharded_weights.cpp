#include "train/checkpoint/sharded_weights.h"

#include <algorithm>
#include <filesystem>

#include "io/atomic_file.h"
#include "io/json_writer.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

std::uint64_t stored_bytes(const SavedTensor& t) {
  return static_cast<std::uint64_t>(t.shape.elements()) * size_of(t.dtype);
}

std::string write_shard(const std::string& path, std::span<const SavedTensor> tensors,
                        const Metadata& metadata) {
  SafetensorsWriter writer({.metadata = metadata});
  for (const SavedTensor& t : tensors) writer.add(t.name, t.dtype, t.shape, t.source);
  writer.write(path);
  return path;
}

// Shards and index of another number than what was written now.
void remove_other_shards(const std::string& folder, const std::string& stem,
                         const std::vector<std::string>& paths) {
  std::error_code error;
  std::vector<fs::path> others;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool shard = name.starts_with(stem + "-") && name.ends_with(".safetensors");
    if (!shard && name != stem + ".safetensors" && name != stem + ".safetensors.index.json") {
      continue;
    }
    if (std::ranges::find(paths, folder + "/" + name) == paths.end()) others.push_back(it->path());
  }
  for (const fs::path& p : others) fs::remove(p, error);
}

}  // namespace

std::vector<std::string> write_sharded(const std::string& folder,
                                       std::span<const SavedTensor> tensors,
                                       const ShardNames& names) {
  std::vector<std::span<const SavedTensor>> shards;
  std::uint64_t filled = 0, total = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = stored_bytes(tensors[i]);
    if (filled > 0 && filled + bytes > names.max_shard.count) {
      shards.push_back(tensors.subspan(first, i - first));
      first = i;
      filled = 0;
    }
    filled += bytes;
    total += bytes;
  }
  shards.push_back(tensors.subspan(first));
  std::vector<std::string> paths;
  if (shards.size() == 1) {
    const std::string path = fmt::format("{}/{}.safetensors", folder, names.stem);
    paths.push_back(write_shard(path, shards[0], names.metadata));
    remove_other_shards(folder, names.stem, paths);
    return paths;
  }
  std::string map;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        fmt::format("{}-{:05}-of-{:05}.safetensors", names.stem, i + 1, shards.size());
    paths.push_back(write_shard(folder + "/" + name, shards[i], names.metadata));
    for (const SavedTensor& t : shards[i]) {
      map += map.empty() ? "\n    " : ",\n    ";
      append_json_string(map, t.name);
      map += fmt::format(": \"{}\"", name);
    }
  }
  paths.push_back(fmt::format("{}/{}.safetensors.index.json", folder, names.stem));
  write_text_file(paths.back(), fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  "
                                            "}},\n  \"weight_map\": {{{}\n  }}\n}}\n",
                                            total, map));
  remove_other_shards(folder, names.stem, paths);
  return paths;
}

}  // namespace ballast::train
