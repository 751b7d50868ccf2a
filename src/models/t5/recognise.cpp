#include "models/t5/recognise.h"

#include <cstring>

#include "core/error.h"
#include "io/limits.h"
#include "memory/text_file.h"
#include "models/t5/params.h"

namespace ballast::t5 {
namespace {

bool same_sizes(const Config& a, const Config& b) {
  return a.d_model == b.d_model && a.d_kv == b.d_kv && a.d_ff == b.d_ff && a.heads == b.heads &&
         a.layers == b.layers && a.decoder_layers == b.decoder_layers &&
         a.vocabulary == b.vocabulary && a.gated == b.gated && a.bias_per_block == b.bias_per_block;
}

void name_it(Config& c) {
  c.name = "t5";
  for (const Config& preset : presets()) {
    if (!same_sizes(c, preset)) continue;
    c.name = preset.name;
    c.description = preset.description;
    return;
  }
}

// Whether the head that is stored is the embedding table once more: files made from tied models
// have it under both names. Rows spread over the table decide.
bool head_is_embedding(const WeightFiles& checkpoint, const NamedTensor& head,
                       const NamedTensor& embedding) {
  const SafetensorsEntry &a = *head.tensor.entry, &b = *embedding.tensor.entry;
  if (a.dtype != b.dtype || a.shape != b.shape || a.bytes != b.bytes || a.bytes == 0) return false;
  const auto rows = static_cast<std::uint64_t>(a.shape[0]);
  const std::uint64_t row = a.bytes / rows;
  std::vector<std::byte> first(row), second(row);
  const Extent x = checkpoint.extent(head.tensor), y = checkpoint.extent(embedding.tensor);
  constexpr std::uint64_t kLooks = 64;
  for (std::uint64_t i = 0; i < kLooks && i < rows; ++i) {
    const std::uint64_t at = rows <= kLooks ? i : i * (rows - 1) / (kLooks - 1);
    x.file->read(x.offset + at * row, first);
    y.file->read(y.offset + at * row, second);
    if (first != second) return false;
  }
  return true;
}

}  // namespace

std::optional<Config> recognise(const WeightFiles& checkpoint, const TensorMap& names) {
  const auto shape_of = [&](const std::string& name) -> std::optional<Shape> {
    const NamedTensor* t = names.find(name);
    if (!t || t->tensor.entry->shape.rank() != 2) return std::nullopt;
    return t->tensor.entry->shape;
  };
  const std::string block = block_name(Side::encoder, 0);
  const auto embedding = shape_of(kEmbeddingName),
             q = shape_of(block + "layer.0.SelfAttention.q.weight");
  const auto table = shape_of(table_name(Side::encoder, 0));
  const auto gated = shape_of(block + "layer.1.DenseReluDense.wi_0.weight");
  const auto plain = shape_of(block + "layer.1.DenseReluDense.wi.weight");
  if (!embedding || !q || !table || (!gated && !plain)) return std::nullopt;
  Config c;
  c.vocabulary = (*embedding)[0];
  c.d_model = (*embedding)[1];
  c.buckets = (*table)[0];
  c.heads = (*table)[1];
  c.d_kv = c.heads > 0 ? (*q)[0] / c.heads : 0;
  c.gated = gated.has_value();
  c.d_ff = (gated ? *gated : *plain)[0];
  c.layers = names.blocks("encoder");
  c.decoder_layers = names.blocks("decoder");
  c.bias_per_block = names.find(table_name(Side::encoder, 1)) != nullptr;
  const NamedTensor* head = names.find(kHeadName);
  if (c.decoder_layers > 0) {
    c.tied = head == nullptr || head_is_embedding(checkpoint, *head, *names.find(kEmbeddingName));
    c.scaled_head = c.tied;
  }
  name_it(c);
  validate(c);
  return c;
}

Config model_config(const WeightFiles& checkpoint, const TensorMap& names, JsonSource json) {
  std::optional<Config> found = recognise(checkpoint, names);
  if (!found) {
    fail(ErrorCode::input, fmt::format("{} holds no T5 or UMT5 model", checkpoint.path()),
         {{"ballast inspect " + checkpoint.path(), "says what it is"}});
  }
  Config& c = *found;
  const std::string path = json.path;
  const Config said = read_config(std::move(json));
  const auto agree = [&](const char* key, std::int64_t config, std::int64_t tensors) {
    if (config == tensors) return;
    fail(ErrorCode::input, "{}: {} is {}, the tensors of {} say {}", path, key, config,
         checkpoint.path(), tensors);
  };
  agree("d_model", said.d_model, c.d_model);
  agree("d_kv", said.d_kv, c.d_kv);
  agree("d_ff", said.d_ff, c.d_ff);
  agree("num_heads", said.heads, c.heads);
  agree("num_layers", said.layers, c.layers);
  if (c.decoder_layers > 0) agree("num_decoder_layers", said.decoder_layers, c.decoder_layers);
  agree("vocab_size", said.vocabulary, c.vocabulary);
  agree("relative_attention_num_buckets", said.buckets, c.buckets);
  agree("feed_forward_proj: gated", said.gated, c.gated);
  c.max_distance = said.max_distance;
  c.eps = said.eps;
  c.pad = said.pad;
  c.eos = said.eos;
  c.decoder_start = said.decoder_start;
  // The file decides what the head is; the config whether its input is scaled.
  if (c.decoder_layers > 0) c.scaled_head = said.scaled_head;
  validate(c);
  return std::move(c);
}

Config model_config(const WeightFiles& checkpoint, const TensorMap& names) {
  if (checkpoint.config_path()) {
    const std::string& path = *checkpoint.config_path();
    const std::string text = read_text_file(path, limits::kConfigBytes, "a config.json");
    return model_config(checkpoint, names, {.text = text, .path = path, .rule = "config.json"});
  }
  if (auto found = recognise(checkpoint, names)) return std::move(*found);
  fail(ErrorCode::input, fmt::format("{} holds no T5 or UMT5 model", checkpoint.path()),
       {{"ballast inspect " + checkpoint.path(), "says what it is"}});
}

}  // namespace ballast::t5
