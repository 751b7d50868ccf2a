#include "models/t5/names.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::t5 {
namespace {

struct Pair {
  std::string_view wan, transformers;
};

// Behind "blocks.<i>." and "block.<i>.".
constexpr std::array kEncoderBlock = std::to_array<Pair>({
    {"norm1", "layer.0.layer_norm"},
    {"attn.q", "layer.0.SelfAttention.q"},
    {"attn.k", "layer.0.SelfAttention.k"},
    {"attn.v", "layer.0.SelfAttention.v"},
    {"attn.o", "layer.0.SelfAttention.o"},
    {"pos_embedding.embedding", "layer.0.SelfAttention.relative_attention_bias"},
    {"norm2", "layer.1.layer_norm"},
    {"ffn.gate.0", "layer.1.DenseReluDense.wi_0"},
    {"ffn.fc1", "layer.1.DenseReluDense.wi_1"},
    {"ffn.fc2", "layer.1.DenseReluDense.wo"},
});
constexpr std::array kDecoderBlock = std::to_array<Pair>({
    {"norm1", "layer.0.layer_norm"},
    {"self_attn.q", "layer.0.SelfAttention.q"},
    {"self_attn.k", "layer.0.SelfAttention.k"},
    {"self_attn.v", "layer.0.SelfAttention.v"},
    {"self_attn.o", "layer.0.SelfAttention.o"},
    {"pos_embedding.embedding", "layer.0.SelfAttention.relative_attention_bias"},
    {"norm2", "layer.1.layer_norm"},
    {"cross_attn.q", "layer.1.EncDecAttention.q"},
    {"cross_attn.k", "layer.1.EncDecAttention.k"},
    {"cross_attn.v", "layer.1.EncDecAttention.v"},
    {"cross_attn.o", "layer.1.EncDecAttention.o"},
    {"norm3", "layer.2.layer_norm"},
    {"ffn.gate.0", "layer.2.DenseReluDense.wi_0"},
    {"ffn.fc1", "layer.2.DenseReluDense.wi_1"},
    {"ffn.fc2", "layer.2.DenseReluDense.wo"},
});

constexpr std::string_view kWeight = ".weight";
constexpr std::array<std::string_view, 3> kEmbeddingNames = {
    "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};

// The digits at the front of a name that has a dot behind them: "12.norm1".
std::string_view block_number(std::string_view name) {
  const std::size_t end = name.find_first_not_of("0123456789");
  if (end == 0 || end == std::string_view::npos || name[end] != '.') return {};
  if (end > 6 || (name[0] == '0' && end > 1)) return {};
  return name.substr(0, end);
}

bool is_block_of(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) && !block_number(name.substr(prefix.size())).empty();
}

}  // namespace

std::string_view name_of(Dialect dialect) {
  constexpr std::array<std::string_view, 3> kNames = {"transformers", "ComfyUI", "Wan"};
  return kNames[to_size(dialect)];
}

std::optional<std::string> transformers_name(std::string_view wan) {
  if (!wan.ends_with(kWeight)) return std::nullopt;
  std::string_view module = wan.substr(0, wan.size() - kWeight.size());
  if (module == "head") return "lm_head.weight";
  std::string_view side = "encoder";
  for (const std::string_view s : {"encoder", "decoder"}) {
    if (module.starts_with(s) && module.size() > 8 && module[7] == '.') {
      side = s;
      module.remove_prefix(8);
      break;
    }
  }
  if (module == "token_embedding") return "shared.weight";
  if (module == "norm") return fmt::format("{}.final_layer_norm.weight", side);
  if (module == "pos_embedding.embedding") {
    return fmt::format("{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", side);
  }
  constexpr std::string_view kBlocks = "blocks.";
  if (!is_block_of(wan.substr(to_size(module.data() - wan.data())), kBlocks)) {
    return std::nullopt;
  }
  module.remove_prefix(kBlocks.size());
  const std::string_view number = block_number(module);
  if (number.empty()) return std::nullopt;
  module.remove_prefix(number.size() + 1);
  const auto found = [&](const auto& table) -> std::optional<std::string> {
    const auto it = std::ranges::find(table, module, &Pair::wan);
    if (it == table.end()) return std::nullopt;
    return fmt::format("{}.block.{}.{}.weight", side, number, it->transformers);
  };
  return side == "encoder" ? found(kEncoderBlock) : found(kDecoderBlock);
}

TensorMap::TensorMap(const WeightFiles& checkpoint) {
  const TensorNames names = read_tensor_names(checkpoint);
  std::string_view wan, transformers;
  for (const NamedTensor& t : names.tensors) {
    if (is_block_of(t.name, "blocks.") || is_block_of(t.name, "encoder.blocks.")) wan = t.name;
    if (is_block_of(t.name, "encoder.block.")) transformers = t.name;
  }
  if (!wan.empty() && !transformers.empty()) {
    fail(ErrorCode::input, "{}: names.mixed: \"{}\" is a name of Wan, \"{}\" one of transformers",
         checkpoint.path(), printable(wan), printable(transformers));
  }
  dialect_ = !wan.empty()                                     ? Dialect::wan
             : names.comfy || checkpoint.find("spiece_model") ? Dialect::comfy
                                                              : Dialect::transformers;
  for (const std::string_view name : names.outside) unknown_.emplace_back(name);
  for (const NamedTensor& t : names.tensors) {
    std::optional<std::string> name = std::string(t.name);
    if (dialect_ == Dialect::wan) name = transformers_name(t.name);
    if (!name || !tensors_.emplace(*name, t).second) unknown_.emplace_back(t.tensor.entry->name);
  }
  for (const std::string_view alias : kEmbeddingNames) {
    const auto found = tensors_.find(alias);
    if (found != tensors_.end()) tensors_.emplace(kEmbeddingNames[0], found->second);
  }
}

const NamedTensor* TensorMap::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::int64_t TensorMap::blocks(std::string_view stack) const {
  const std::string prefix = fmt::format("{}.block.", stack);
  std::int64_t count = 0;
  for (auto it = tensors_.lower_bound(prefix);
       it != tensors_.end() && it->first.starts_with(prefix); ++it) {
    const std::string_view number = block_number(std::string_view(it->first).substr(prefix.size()));
    std::int64_t n = -1;
    std::from_chars(number.data(), number.data() + number.size(), n);
    count = std::max(count, n + 1);
  }
  return count;
}

}  // namespace ballast::t5
