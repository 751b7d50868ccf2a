#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/weight_files.h"

namespace ballast::wan {

enum class LoraDialect {
  comfy,      // diffusion_model.blocks.0.self_attn.q.lora_A.weight
  kohya,      // lora_unet_blocks_0_self_attn_q.lora_down.weight, with .alpha
  diffusers,  // transformer.blocks.0.attn1.to_q.lora_A.weight
  diffsynth,  // blocks.0.self_attn.q.lora_A.default.weight
  peft,       // the official name, with base_model.model. or nothing in front
};
std::string_view name_of(LoraDialect dialect);

// A LoRA file for Wan: W' = W + (alpha / rank) up down, down [rank, in], up [out, rank].
struct LoraFile {
  LoraDialect dialect = LoraDialect::comfy;
  std::int64_t modules = 0;
  std::int64_t blocks = 0;        // transformer blocks that have a module
  std::set<std::int64_t> ranks;   // all that occur
  std::int64_t alphas = 0;        // modules that store one; the others mean alpha = rank
  std::set<double> alpha_values;  // at most 16 of them
  std::int64_t dim = 0;           // width of the model, 0 where no attention module says
  std::vector<std::string> problems;
};

// nullopt when no tensor is a LoRA factor.
std::optional<LoraFile> recognise_lora(const WeightFiles& checkpoint);

// The official module a key belongs to and what of it the key holds; nullopt for a key that is no
// part of any LoRA dialect. A module that the model does not have is "".
struct LoraKey {
  enum class Part {
    down,
    up,
    alpha,
    diff,     // added to the weight as it is
    diff_b,   // added to the bias
    up_bias,  // PEFT's lora_bias: scaled as the product, added to the bias
    other,    // what changes the meaning of the factors: DoRA scale, middle factor, LoKr, LoHa
  };

  LoraDialect dialect;
  std::string module;  // "blocks.0.self_attn.q"
  Part part;
};
std::optional<LoraKey> parse_lora_key(std::string_view key);

// 3 of "blocks.3.ffn.0", -1 of a module outside the blocks.
std::int64_t block_number(std::string_view module);

// "blocks_3_cross_attn_k_img"
std::string underscored(std::string_view module);

}  // namespace ballast::wan
