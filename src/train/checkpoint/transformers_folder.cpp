#include "train/checkpoint/transformers_folder.h"

#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/path_kind.h"
#include "io/atomic_file.h"
#include "io/json_edit.h"
#include "memory/text_file.h"
#include "train/checkpoint/sharded_weights.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "spiece.model",
                                           "tokenizer_config.json", "special_tokens_map.json",
                                           "added_tokens.json"};
constexpr std::uint64_t kMaxBytes = 256 << 20;  // of a file that is copied

// nullopt where there is no such file.
std::optional<std::string> read_small(const fs::path& path) {
  if (!is_file(path)) return std::nullopt;
  return read_text_file(path.string(), kMaxBytes, "a file of a model that is copied");
}

// False when there is none. A file that is there already is itself.
bool copy_file(const fs::path& from, const std::string& to) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) return true;
  const std::optional<std::string> text = read_small(from);
  if (text) write_text_file(to, *text);
  return text.has_value();
}

// The class that transformers loads a model of this type with.
std::string architecture_of(std::string_view model_type) {
  const std::string_view family = model_type == "umt5"  ? "UMT5"
                                  : model_type == "mt5" ? "MT5"
                                                        : "T5";
  return fmt::format("{}ForConditionalGeneration", family);
}

std::string_view torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

std::string config_text(const t5::Config& c) {
  return fmt::format(
      "{{\n  \"architectures\": [\"{}\"],\n  \"d_ff\": {},\n  \"d_kv\": {},\n"
      "  \"d_model\": {},\n  \"decoder_start_token_id\": {},\n  \"eos_token_id\": {},\n"
      "  \"feed_forward_proj\": \"{}\",\n  \"is_encoder_decoder\": true,\n"
      "  \"layer_norm_epsilon\": {},\n  \"model_type\": \"{}\",\n  \"num_decoder_layers\": {},\n"
      "  \"num_heads\": {},\n  \"num_layers\": {},\n  \"pad_token_id\": {},\n"
      "  \"relative_attention_max_distance\": {},\n  \"relative_attention_num_buckets\": {},\n"
      "  \"scale_decoder_outputs\": {},\n  \"tie_word_embeddings\": {},\n  \"vocab_size\": "
      "{}\n}}\n",
      architecture_of(c.bias_per_block ? "umt5" : "t5"), c.d_ff, c.d_kv, c.d_model, c.decoder_start,
      c.eos, c.gated ? "gated-gelu" : "relu", c.eps, c.bias_per_block ? "umt5" : "t5",
      c.decoder_layers, c.heads, c.layers, c.pad, c.max_distance, c.buckets, c.scaled_head, c.tied,
      c.vocabulary);
}

std::string generation_text(const t5::Config& c) {
  return fmt::format(
      "{{\n  \"decoder_start_token_id\": {},\n  \"eos_token_id\": {},\n  \"pad_token_id\": "
      "{}\n}}\n",
      c.decoder_start, c.eos, c.pad);
}

// What of a model's config.json does not hold for the weights that are written: their type, a class
// without a head (the model may have been saved as an encoder), and whether the head is the
// embedding table, which the weights decide.
std::string config_for(const t5::Config& c, DType weights, const std::string& text,
                       const std::string& path) {
  const JsonSource source = {.text = text, .path = path, .rule = "config.json"};
  std::string model_type = c.bias_per_block ? "umt5" : "t5";
  bool has_dtype = false, has_torch_dtype = false, has_class = false, tied = true;
  JsonReader json(source);
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (key == "model_type" && json.peek() == JsonReader::Kind::string) {
      model_type = json.string();
    } else if (key == "dtype" || key == "torch_dtype") {
      (key == "dtype" ? has_dtype : has_torch_dtype) = true;
      json.skip();
    } else if (key == "tie_word_embeddings" && json.peek() == JsonReader::Kind::boolean) {
      tied = json.boolean();
    } else if (key == "architectures" && json.peek() == JsonReader::Kind::array) {
      json.open_array();
      while (json.next_element()) {
        has_class |= json.string().ends_with("ForConditionalGeneration");
      }
    } else {
      json.skip();
    }
  }
  json.finish();
  // Releases since 2025 say dtype, all of them understand torch_dtype.
  const std::string type = fmt::format("\"{}\"", torch_name(weights));
  std::vector<JsonMember> changed;
  if (has_dtype) changed.push_back({"dtype", type});
  if (has_torch_dtype || !has_dtype) changed.push_back({"torch_dtype", type});
  if (!has_class) {
    changed.push_back({"architectures", fmt::format("[\"{}\"]", architecture_of(model_type))});
  }
  if (tied != c.tied) {
    changed.push_back({"tie_word_embeddings", c.tied ? "true" : "false"});
    changed.push_back({"scale_decoder_outputs", c.scaled_head ? "true" : "false"});
  }
  return with_members(source, changed);
}

void copy_tokenizer(const std::string& model, const std::string& tokenizer, const std::string& to) {
  fs::path folder(tokenizer.empty() ? model : tokenizer);
  if (!is_folder(folder)) {
    // Whatever its name is, transformers looks for these two.
    const bool json = folder.extension() == ".json";
    copy_file(folder, to + "/" + (json ? "tokenizer.json" : "spiece.model"));
    folder = folder.parent_path();
    copy_file(folder / "tokenizer_config.json", to + "/tokenizer_config.json");
    copy_file(folder / "special_tokens_map.json", to + "/special_tokens_map.json");
    copy_file(folder / "added_tokens.json", to + "/added_tokens.json");
    return;
  }
  for (const char* name : kTokenizerFiles) copy_file(folder / name, to + "/" + name);
}

}  // namespace

void write_model_files(const std::string& model, const std::string& tokenizer,
                       const t5::Config& config, DType weights, const std::string& to) {
  const fs::path source = fs::path(model) / "config.json";
  const std::string text = read_small(source).value_or(config_text(config));
  write_text_file(to + "/config.json", config_for(config, weights, text, source.string()));
  const std::string generation = to + "/generation_config.json";
  if (!copy_file(fs::path(model) / "generation_config.json", generation)) {
    write_text_file(generation, generation_text(config));
  }
  copy_tokenizer(model, tokenizer, to);
}

void write_adapter_files(const std::string& from, const std::string& tokenizer,
                         const t5::AdapterConfig& config, const std::string& to) {
  write_text_file(to + "/" + t5::kAdapterConfigFile, adapter_config_json(config));
  copy_tokenizer(from, tokenizer, to);
}

void write_tensors(const std::string& path, std::span<const SavedTensor> tensors) {
  SafetensorsWriter writer({.metadata = {{"format", "pt"}}});
  for (const SavedTensor& t : tensors) writer.add(t.name, t.dtype, t.shape, t.source);
  writer.write(path);
}

std::vector<std::string> write_model_weights(const std::string& folder,
                                             std::span<const SavedTensor> tensors,
                                             Bytes max_shard) {
  return write_sharded(folder, tensors, {.stem = "model", .max_shard = max_shard});
}

}  // namespace ballast::train
