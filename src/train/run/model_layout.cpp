#include "train/run/model_layout.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "core/path_kind.h"
#include "io/atomic_file.h"
#include "io/atomic_folder.h"
#include "io/json_reader.h"
#include "io/limits.h"
#include "io/shared_files.h"
#include "memory/disk_file.h"
#include "memory/text_file.h"
#include "models/wan/diffusers_config.h"
#include "train/checkpoint/sharded_weights.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPipelineFile = "model_index.json";
constexpr const char* kDiffusersStem = "diffusion_pytorch_model";
constexpr Bytes kDiffusersShard{10'000'000'000};

// The keys of a model_index.json whose values are [library, class].
std::vector<std::string> components_of(const fs::path& pipeline) {
  const fs::path path = pipeline / kPipelineFile;
  const std::string text = read_text_file(path.string(), limits::kConfigBytes, kPipelineFile);
  JsonReader json({.text = text, .path = path.string(), .rule = kPipelineFile});
  std::vector<std::string> components;
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    std::string name(key);
    const bool plain = !name.empty() && !name.starts_with('.') &&
                       name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
    if (plain && json.peek() == JsonReader::Kind::array) components.push_back(std::move(name));
    json.skip();
  }
  json.finish();
  return components;
}

void write_transformer_config(const ModelLayout& layout, const wan::Config& sizes,
                              const std::string& path) {
  if (!layout.config.empty()) return share_file(layout.config, path);
  write_text_file(path, wan::diffusers_config_json(sizes));
}

}  // namespace

ModelLayout layout_of(const std::string& transformer, wan::Dialect names,
                      const std::string& config_json) {
  ModelLayout layout;
  if (names != wan::Dialect::diffusers) {
    layout.config = config_json;
    return layout;
  }
  layout.kind = ModelLayout::Kind::diffusers;
  std::error_code error;
  fs::path folder = fs::absolute(transformer, error).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "model/transformer/"
  if (!fs::is_directory(folder, error)) folder = folder.parent_path();
  if (is_file(folder / "config.json")) layout.config = (folder / "config.json").string();
  const fs::path pipeline = folder.parent_path();
  const std::string component = folder.filename().string();
  if (!is_file(pipeline / kPipelineFile)) return layout;
  const std::vector<std::string> components = components_of(pipeline);
  if (std::ranges::find(components, component) == components.end()) return layout;
  layout.kind = ModelLayout::Kind::pipeline;
  layout.pipeline = pipeline.string();
  layout.component = component;
  return layout;
}

void add_official_files(const ModelLayout& layout, const std::string& file, bool own_folder) {
  if (layout.config.empty()) return;
  const fs::path folder = fs::path(file).parent_path();
  share_file(layout.config, (folder / "config.json").string());
  if (!own_folder) return;
  const fs::path official = folder / fmt::format("{}.safetensors", kDiffusersStem);
  if (::link(file.c_str(), official.c_str()) == 0) return;
  // A file system without hard links.
  const std::string name = fs::path(file).filename().string();
  if (::symlink(name.c_str(), official.c_str()) != 0) fail_io(official.string(), "link it", errno);
}

void write_diffusers(const ModelLayout& layout, const wan::Config& sizes,
                     std::span<const SavedTensor> tensors, const Metadata& metadata,
                     const std::string& folder) {
  std::vector<SavedTensor> renamed(tensors.begin(), tensors.end());
  for (SavedTensor& t : renamed) {
    const auto name = wan::diffusers_name(t.name);
    check(name.has_value(), "{} has no name in diffusers", t.name);
    t.name = *name;
  }
  std::string weights = folder;
  if (layout.kind == ModelLayout::Kind::pipeline) {
    share_file(layout.pipeline + "/" + kPipelineFile, folder + "/" + kPipelineFile);
    for (const std::string& component : components_of(layout.pipeline)) {
      const std::string from = layout.pipeline + "/" + component;
      if (component == layout.component || !is_folder(from)) continue;
      share_folder(from, folder + "/" + component);
    }
    weights += "/" + layout.component;
    create_folders(weights);
  }
  write_transformer_config(layout, sizes, weights + "/config.json");
  write_sharded(weights, renamed,
                {.stem = kDiffusersStem, .max_shard = kDiffusersShard, .metadata = metadata});
}

}  // namespace ballast::train
