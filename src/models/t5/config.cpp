#include "models/t5/config.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace ballast::t5 {
namespace {

Config sizes(const char* name, const char* description, std::int64_t d_model, std::int64_t d_ff,
             std::int64_t layers, std::int64_t heads) {
  Config c;
  c.name = name;
  c.description = description;
  c.d_model = d_model;
  c.d_ff = d_ff;
  c.layers = c.decoder_layers = layers;
  c.heads = heads;
  return c;
}

Config original(Config c) {
  c.gated = false;
  c.tied = c.scaled_head = true;
  return c;
}

// The largest have heads of twice the width.
Config wide(Config c) {
  c.d_kv = 128;
  return c;
}

Config umt5_encoder() {
  Config c =
      sizes("umt5-xxl-encoder", "UMT5-XXL encoder: the text side of Wan", 4096, 10240, 24, 64);
  c.decoder_layers = 0;
  c.vocabulary = 256384;
  c.bias_per_block = true;
  return c;
}

constexpr std::int64_t kMaxSize = 1 << 20;

std::int32_t read_id(JsonReader& json) { return static_cast<std::int32_t>(json.i64(0, INT32_MAX)); }

// "gated-gelu" is the tanh form, in T5 alone.
bool read_feed_forward(JsonReader& json) {
  const std::string_view kind = json.string();
  if (kind == "gated-gelu") return true;
  if (kind == "relu") return false;
  json.fail_value(fmt::format("\"{}\" is not one of relu, gated-gelu", printable(kind)));
}

}  // namespace

std::span<const Config> presets() {
  static const std::array<Config, 11> kPresets = {{
      umt5_encoder(),
      sizes("t5-v1.1-small", "T5 v1.1 or FLAN-T5 small", 512, 1024, 8, 6),
      sizes("t5-v1.1-base", "T5 v1.1 or FLAN-T5 base", 768, 2048, 12, 12),
      sizes("t5-v1.1-large", "T5 v1.1 or FLAN-T5 large", 1024, 2816, 24, 16),
      sizes("t5-v1.1-xl", "T5 v1.1 or FLAN-T5 XL", 2048, 5120, 24, 32),
      sizes("t5-v1.1-xxl", "T5 v1.1 or FLAN-T5 XXL", 4096, 10240, 24, 64),
      original(sizes("t5-small", "original T5 small", 512, 2048, 6, 8)),
      original(sizes("t5-base", "original T5 base", 768, 3072, 12, 12)),
      original(sizes("t5-large", "original T5 large", 1024, 4096, 24, 16)),
      wide(original(sizes("t5-3b", "original T5 3B", 1024, 16384, 24, 32))),
      wide(original(sizes("t5-11b", "original T5 11B", 1024, 65536, 24, 128))),
  }};
  return kPresets;
}

std::optional<Config> find_preset(std::string_view name) {
  const auto all = presets();
  const auto it = std::ranges::find(all, name, &Config::name);
  if (it == all.end()) return std::nullopt;
  return *it;
}

void validate(const Config& c) {
  const auto within = [&](const char* field, std::int64_t v, std::int64_t least,
                          std::int64_t most) {
    if (v >= least && v <= most) return;
    fail(ErrorCode::input, "model config {}: {} is {}, expected {} to {}", c.name, field, v, least,
         most);
  };
  within("d_model", c.d_model, 1, 1 << 16);
  within("d_kv", c.d_kv, 1, 1 << 12);
  within("d_ff", c.d_ff, 1, 1 << 18);
  within("num_heads", c.heads, 1, 1 << 12);
  within("num_heads * d_kv", c.inner(), 1, 1 << 18);
  within("num_layers", c.layers, 1, 1 << 12);
  within("num_decoder_layers", c.decoder_layers, 0, 1 << 12);
  within("vocab_size", c.vocabulary, 1, 1 << 24);
  within("relative_attention_num_buckets", c.buckets, 4, ops::RelativeBuckets::kMax);
  if (c.buckets % 2 != 0) {
    fail(ErrorCode::input,
         "model config {}: {} relative buckets, expected an even "
         "number: half are for keys before the query",
         c.name, c.buckets);
  }
  within("relative_attention_max_distance", c.max_distance, c.buckets / 2 + 1, 1 << 20);
  if (!(c.eps > 0 && c.eps < 1)) {
    fail(ErrorCode::input, "model config {}: layer_norm_epsilon is {}", c.name, c.eps);
  }
  within("pad_token_id", c.pad, 0, c.vocabulary - 1);
  within("eos_token_id", c.eos, 0, c.vocabulary - 1);
  within("decoder_start_token_id", c.decoder_start, 0, c.vocabulary - 1);
}

Config read_config(JsonSource source) {
  Config c;
  c.name = "t5";
  c.gated = false;
  bool tied = true;
  std::optional<bool> scaled;
  std::optional<std::int32_t> start;
  std::optional<std::int64_t> decoder_layers;
  JsonReader json(std::move(source));
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    if (json.peek() == JsonReader::Kind::null) {
      json.null();
    } else if (key == "d_model") {
      c.d_model = json.i64(1, kMaxSize);
    } else if (key == "d_kv") {
      c.d_kv = json.i64(1, kMaxSize);
    } else if (key == "d_ff") {
      c.d_ff = json.i64(1, kMaxSize);
    } else if (key == "num_heads") {
      c.heads = json.i64(1, kMaxSize);
    } else if (key == "num_layers") {
      c.layers = json.i64(1, kMaxSize);
    } else if (key == "num_decoder_layers") {
      decoder_layers = json.i64(0, kMaxSize);
    } else if (key == "vocab_size") {
      c.vocabulary = json.i64(1, 1 << 24);
    } else if (key == "relative_attention_num_buckets") {
      c.buckets = json.i64(1, kMaxSize);
    } else if (key == "relative_attention_max_distance") {
      c.max_distance = json.i64(1, kMaxSize);
    } else if (key == "feed_forward_proj") {
      c.gated = read_feed_forward(json);
    } else if (key == "layer_norm_epsilon") {
      c.eps = static_cast<float>(json.number());
    } else if (key == "tie_word_embeddings") {
      tied = json.boolean();
    } else if (key == "scale_decoder_outputs") {
      scaled = json.boolean();
    } else if (key == "model_type") {
      c.bias_per_block = json.string() == "umt5";
    } else if (key == "pad_token_id") {
      c.pad = read_id(json);
    } else if (key == "eos_token_id") {
      c.eos = read_id(json);
    } else if (key == "decoder_start_token_id") {
      start = read_id(json);
    } else {
      json.skip();
    }
  }
  json.finish();
  c.decoder_layers = decoder_layers.value_or(c.layers);
  c.tied = tied;
  // Newer files keep apart what older ones derive from the first.
  c.scaled_head = scaled.value_or(tied);
  c.decoder_start = start.value_or(c.pad);
  validate(c);
  return c;
}

}  // namespace ballast::t5
