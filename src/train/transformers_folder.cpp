#include "train/transformers_folder.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/json_writer.h"
#include "memory/disk_file.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "spiece.model",
                                           "tokenizer_config.json", "special_tokens_map.json",
                                           "added_tokens.json"};
constexpr std::uint64_t kMostBytes = 256 << 20;  // of a file that is copied

void write_text(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

// False when there is none. A file that is there already is itself.
bool copy_file(const fs::path& from, const std::string& to) {
  std::error_code error;
  if (!fs::is_regular_file(from, error)) return false;
  if (fs::equivalent(from, to, error)) return true;
  const DiskFile file = DiskFile::open(from.string(), DiskMode::buffered);
  if (file.size() > kMostBytes) {
    fail(ErrorCode::input,
         fmt::format("{}: {} bytes are too many to copy", from.string(), file.size()));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  write_text(to, text);
  return true;
}

std::string config_text(const t5::Config& c) {
  return fmt::format(
      "{{\n  \"architectures\": [\"T5ForConditionalGeneration\"],\n  \"d_ff\": {},\n  \"d_kv\": "
      "{},\n"
      "  \"d_model\": {},\n  \"decoder_start_token_id\": {},\n  \"eos_token_id\": {},\n"
      "  \"feed_forward_proj\": \"{}\",\n  \"is_encoder_decoder\": true,\n"
      "  \"layer_norm_epsilon\": {},\n  \"model_type\": \"{}\",\n  \"num_decoder_layers\": {},\n"
      "  \"num_heads\": {},\n  \"num_layers\": {},\n  \"pad_token_id\": {},\n"
      "  \"relative_attention_max_distance\": {},\n  \"relative_attention_num_buckets\": {},\n"
      "  \"tie_word_embeddings\": {},\n  \"vocab_size\": {}\n}}\n",
      c.d_ff, c.d_kv, c.d_model, c.decoder_start, c.eos, c.gated ? "gated-gelu" : "relu", c.eps,
      c.bias_per_block ? "umt5" : "t5", c.decoder_layers, c.heads, c.layers, c.pad, c.max_distance,
      c.buckets, c.tied, c.vocabulary);
}

std::string generation_text(const t5::Config& c) {
  return fmt::format(
      "{{\n  \"decoder_start_token_id\": {},\n  \"eos_token_id\": {},\n  \"pad_token_id\": "
      "{}\n}}\n",
      c.decoder_start, c.eos, c.pad);
}

std::uint64_t bytes_of(const SavedTensor& t) {
  return static_cast<std::uint64_t>(t.shape.elements()) * size_of(t.dtype);
}

std::string write_shard(const std::string& path, std::span<const SavedTensor> tensors) {
  write_tensors(path, tensors);
  return path;
}

void copy_tokenizer(const std::string& model, const std::string& tokenizer, const std::string& to) {
  std::error_code error;
  fs::path folder(tokenizer.empty() ? model : tokenizer);
  if (!fs::is_directory(folder, error)) folder = folder.parent_path();
  for (const char* name : kTokenizerFiles) copy_file(folder / name, to + "/" + name);
}

// Shards and index of another number than what was written now.
void remove_others(const std::string& folder, const std::vector<std::string>& paths) {
  std::error_code error;
  std::vector<fs::path> others;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool shard = name.starts_with("model-") && name.ends_with(".safetensors");
    if (!shard && name != kModelFile && name != kIndexFile) continue;
    if (std::ranges::find(paths, folder + "/" + name) == paths.end()) others.push_back(it->path());
  }
  for (const fs::path& p : others) fs::remove(p, error);
}

}  // namespace

void write_model_files(const std::string& model, const std::string& tokenizer,
                       const t5::Config& config, const std::string& to) {
  const auto put = [&](const char* name, std::string (*text)(const t5::Config&)) {
    const std::string path = to + "/" + name;
    if (!copy_file(fs::path(model) / name, path)) write_text(path, text(config));
  };
  put("config.json", config_text);
  put("generation_config.json", generation_text);
  copy_tokenizer(model, tokenizer, to);
}

void write_adapter_files(const std::string& from, const std::string& tokenizer,
                         const t5::AdapterConfig& config, const std::string& to) {
  write_text(to + "/" + t5::kAdapterConfigFile, adapter_config_json(config));
  copy_tokenizer(from, tokenizer, to);
}

void write_tensors(const std::string& path, std::span<const SavedTensor> tensors) {
  SafetensorsWriter writer({.metadata = {{"format", "pt"}}});
  for (const SavedTensor& t : tensors) writer.add(t.name, t.dtype, t.shape, t.source);
  writer.write(path);
}

std::vector<std::string> write_model_weights(const std::string& folder,
                                             std::span<const SavedTensor> tensors,
                                             Bytes most_shard) {
  std::vector<std::span<const SavedTensor>> shards;
  std::uint64_t filled = 0, total = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (filled > 0 && filled + bytes_of(tensors[i]) > most_shard.count) {
      shards.push_back(tensors.subspan(first, i - first));
      first = i;
      filled = 0;
    }
    filled += bytes_of(tensors[i]);
    total += bytes_of(tensors[i]);
  }
  shards.push_back(tensors.subspan(first));
  std::vector<std::string> paths;
  if (shards.size() == 1) {
    paths.push_back(write_shard(folder + "/" + kModelFile, shards[0]));
    remove_others(folder, paths);
    return paths;
  }
  std::string map;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    paths.push_back(write_shard(folder + "/" + name, shards[i]));
    for (const SavedTensor& t : shards[i]) {
      map += map.empty() ? "\n    " : ",\n    ";
      append_json_string(map, t.name);
      map += fmt::format(": \"{}\"", name);
    }
  }
  paths.push_back(folder + "/" + kIndexFile);
  write_text(paths.back(),
             fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": "
                         "{{{}\n  }}\n}}\n",
                         total, map));
  remove_others(folder, paths);
  return paths;
}

}  // namespace ballast::train
