#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "io/json_reader.h"
#include "ops/relative_buckets.h"

namespace ballast::t5 {

// Sizes of one text transformer of the T5 family: T5 (original and v1.1), FLAN-T5, UMT5.
struct Config {
  std::string name;  // "umt5-xxl-encoder"
  std::string description;
  std::int64_t d_model = 512;       // C
  std::int64_t d_kv = 64;           // D
  std::int64_t d_ff = 2048;         // F
  std::int64_t heads = 8;           // H
  std::int64_t layers = 6;          // of the encoder
  std::int64_t decoder_layers = 0;  // 0: an encoder alone
  std::int64_t vocabulary = 32128;  // V
  std::int64_t buckets = 32, max_distance = 128;
  bool gated = true;            // gelu(wi_0 x) * wi_1 x, else relu(wi x)
  bool bias_per_block = false;  // every block has a table of relative biases, else one per stack
  bool tied = false;            // the output head is the embedding table
  bool scaled_head = false;     // what the head reads is multiplied by d_model^-0.5
  float eps = 1e-6f;
  std::int32_t pad = 0, eos = 1, decoder_start = 0;

  std::int64_t inner() const { return heads * d_kv; }
  ops::RelativeBuckets relative(bool bidirectional) const {
    return ops::relative_buckets(buckets, max_distance, bidirectional);
  }
};

// Fails with ErrorCode::input, naming the field, when sizes contradict each other or are absurd.
void validate(const Config& c);

// umt5-xxl-encoder, t5-v1.1-{small,base,large,xl,xxl} (FLAN-T5 has the same sizes), and the
// original t5-{small,base,large,3b,11b}.
std::span<const Config> presets();
std::optional<Config> find_preset(std::string_view name);

// What a config.json of transformers says; unknown keys are skipped, absent ones have
// transformers' defaults. Fails with ErrorCode::input.
Config read_config(JsonSource source);

}  // namespace ballast::t5
