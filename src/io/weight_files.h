#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/name_index.h"
#include "io/safetensors.h"

namespace ballast {

struct WeightIndex;

// A tensor of a checkpoint: which of its files, and where in that.
struct WeightTensor {
  std::uint32_t file = 0;
  const SafetensorsEntry* entry = nullptr;
};

// One model as the user names it: a safetensors or PyTorch file, a `*.index.json` with its shards,
// or a folder that holds one of either. All headers are read and checked here; no tensor data is.
class WeightFiles {
 public:
  // Fails with ErrorCode::io where the system refuses, else with ErrorCode::input and a rule:
  // st.* and pth.* (a file), index.* (the index or what it promises), folder.* (nothing or too much
  // there).
  static WeightFiles open(const std::string& path, DiskMode mode = DiskMode::automatic);

  const std::string& path() const { return path_; }  // as given
  std::span<const SafetensorsFile> files() const { return files_; }
  const SafetensorsFile& file(const WeightTensor& t) const { return files_[t.file]; }
  std::span<const WeightTensor> tensors() const { return tensors_; }  // by file, then offset
  const WeightTensor* find(std::string_view name) const;              // nullptr when absent
  const WeightTensor& get(std::string_view name) const;               // fails when absent

  // The config.json beside the index or in the folder, where there is one.
  const std::optional<std::string>& config_path() const { return config_path_; }
  // What is odd but does not stop anyone, a sentence each, with the path in it.
  std::span<const std::string> warnings() const { return warnings_; }

  // Only the tensors whose names begin so, without that beginning (io/weight_file_parts.h).
  void keep_part(std::string_view prefix);

  DType dtype(const WeightTensor& t) const { return file(t).dtype(*t.entry); }
  // Stays good when the checkpoint is moved.
  Extent extent(const WeightTensor& t) const { return file(t).extent(*t.entry); }
  void read(const WeightTensor& t, std::span<std::byte> to,
            PageCache cache = PageCache::keep) const {
    file(t).read(*t.entry, to, cache);
  }
  std::vector<float> floats(const WeightTensor& t) const { return file(t).floats(*t.entry); }

 private:
  explicit WeightFiles(std::string path) : path_(std::move(path)) {}
  void open_folder(const std::string& folder, DiskMode mode);
  void open_single(const std::string& file_path, DiskMode mode);
  void open_index(const std::string& index_path, DiskMode mode);
  void open_shards(const std::string& index_path, const WeightIndex& index, DiskMode mode);
  void keep_mapped(const std::string& index_path, const WeightIndex& index);
  void warn_of_strays(const std::string& index_path, const WeightIndex& index);
  void find_config(const std::string& folder);
  void index_tensors();

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::vector<WeightTensor> tensors_;
  std::vector<SafetensorsEntry> renamed_;  // of a part: what its tensors point to
  NameIndex index_;
  std::optional<std::string> config_path_;
  std::vector<std::string> warnings_;
};

}  // namespace ballast
