#include "models/wan/names.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/to_size.h"
#include "io/weight_file_parts.h"

namespace ballast::wan {
namespace {

struct Pair {
  std::string_view official, diffusers;
};

constexpr std::array kOutsideBlocks = std::to_array<Pair>({
    {"patch_embedding", "patch_embedding"},
    {"text_embedding.0", "condition_embedder.text_embedder.linear_1"},
    {"text_embedding.2", "condition_embedder.text_embedder.linear_2"},
    {"time_embedding.0", "condition_embedder.time_embedder.linear_1"},
    {"time_embedding.2", "condition_embedder.time_embedder.linear_2"},
    {"time_projection.1", "condition_embedder.time_proj"},
    {"head.modulation", "scale_shift_table"},
    {"head.head", "proj_out"},
    // Wan2.1 image-to-video only.
    {"img_emb.proj.0", "condition_embedder.image_embedder.norm1"},
    {"img_emb.proj.1", "condition_embedder.image_embedder.ff.net.0.proj"},
    {"img_emb.proj.3", "condition_embedder.image_embedder.ff.net.2"},
    {"img_emb.proj.4", "condition_embedder.image_embedder.norm2"},
    {"img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed"},
});

// Behind "blocks.<i>.". Of the three norms of a block only the one before cross-attention has
// parameters: the official order norm1, norm3, norm2 is norm1, norm2, norm3 in diffusers.
constexpr std::array kInBlock = std::to_array<Pair>({
    {"modulation", "scale_shift_table"},
    {"self_attn.q", "attn1.to_q"},
    {"self_attn.k", "attn1.to_k"},
    {"self_attn.v", "attn1.to_v"},
    {"self_attn.o", "attn1.to_out.0"},
    {"self_attn.norm_q", "attn1.norm_q"},
    {"self_attn.norm_k", "attn1.norm_k"},
    {"norm3", "norm2"},
    {"cross_attn.q", "attn2.to_q"},
    {"cross_attn.k", "attn2.to_k"},
    {"cross_attn.v", "attn2.to_v"},
    {"cross_attn.o", "attn2.to_out.0"},
    {"cross_attn.norm_q", "attn2.norm_q"},
    {"cross_attn.norm_k", "attn2.norm_k"},
    {"ffn.0", "ffn.net.0.proj"},
    {"ffn.2", "ffn.net.2"},
    // Wan2.1 image-to-video only.
    {"cross_attn.k_img", "attn2.add_k_proj"},
    {"cross_attn.v_img", "attn2.add_v_proj"},
    {"cross_attn.norm_k_img", "attn2.norm_added_k"},
});

using Side = std::string_view Pair::*;

std::optional<std::string> translate(std::string_view name, std::string_view block,
                                     std::span<const Pair> table, Side from, Side to) {
  for (const Pair& pair : table) {
    const std::string_view module = pair.*from;
    if (!name.starts_with(module)) continue;
    const std::string_view rest = name.substr(module.size());
    if (rest.empty() || rest.front() == '.') return fmt::format("{}{}{}", block, pair.*to, rest);
  }
  return std::nullopt;
}

std::optional<std::string> translate(std::string_view name, Side from, Side to) {
  constexpr std::string_view kBlocks = "blocks.";
  if (!name.starts_with(kBlocks)) return translate(name, "", kOutsideBlocks, from, to);
  std::size_t end = kBlocks.size();
  while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
  const bool number = end > kBlocks.size() && (name[kBlocks.size()] != '0' || end == 8);
  if (!number || end == name.size() || name[end] != '.') return std::nullopt;
  return translate(name.substr(end + 1), name.substr(0, end + 1), kInBlock, from, to);
}

// Told by names that only one of the two has.
bool only_diffusers(std::string_view name) {
  return name.starts_with("condition_embedder.") || name.starts_with("proj_out.") ||
         name.ends_with("scale_shift_table") || name.find(".attn1.") != std::string_view::npos ||
         name.find(".attn2.") != std::string_view::npos;
}

bool only_official(std::string_view name) {
  return name.starts_with("text_embedding.") || name.starts_with("time_embedding.") ||
         name.starts_with("head.") || name.find(".self_attn.") != std::string_view::npos ||
         name.find(".cross_attn.") != std::string_view::npos;
}

}  // namespace

std::string_view name_of(Dialect dialect) {
  constexpr std::array<std::string_view, 3> kNames = {"official", "ComfyUI", "diffusers"};
  return kNames[to_size(dialect)];
}

std::optional<std::string> diffusers_name(std::string_view official) {
  return translate(official, &Pair::official, &Pair::diffusers);
}

std::optional<std::string> official_name(std::string_view diffusers) {
  return translate(diffusers, &Pair::diffusers, &Pair::official);
}

bool is_module(std::string_view official) {
  const auto whole = [&](std::span<const Pair> table, std::string_view name) {
    return std::any_of(table.begin(), table.end(),
                       [&](const Pair& pair) { return pair.official == name; });
  };
  if (!diffusers_name(official)) return false;
  if (!official.starts_with("blocks.")) return whole(kOutsideBlocks, official);
  return whole(kInBlock, official.substr(official.find('.', 7) + 1));
}

TensorMap::TensorMap(const WeightFiles& checkpoint) {
  const TensorNames names = read_tensor_names(checkpoint);
  prefix_ = names.prefix;
  std::string_view official, diffusers;
  for (const NamedTensor& t : names.tensors) {
    if (only_official(t.name)) official = t.name;
    if (only_diffusers(t.name)) diffusers = t.name;
  }
  if (!official.empty() && !diffusers.empty()) {
    fail(ErrorCode::input, "{}: names.mixed: \"{}\" is an official name, \"{}\" one of diffusers",
         checkpoint.path(), printable(official), printable(diffusers));
  }
  dialect_ = !diffusers.empty() ? Dialect::diffusers
             : names.comfy      ? Dialect::comfy
                                : Dialect::official;
  for (const std::string_view name : names.outside) {
    if (!is_of_another_part(name)) unknown_.emplace_back(name);
  }
  tensors_.reserve(names.tensors.size());
  const auto name_at = [&](std::uint32_t i) { return std::string_view(tensors_[i].name); };
  for (const NamedTensor& t : names.tensors) {
    std::optional<std::string> name =
        dialect_ == Dialect::diffusers ? official_name(t.name) : std::string(t.name);
    if (!name) {
      unknown_.emplace_back(t.tensor.entry->name);
      continue;
    }
    const auto number = static_cast<std::uint32_t>(tensors_.size());
    tensors_.push_back({std::move(*name), t});
    check(!index_.insert(tensors_.back().name, number, name_at), "{} stands for two tensors",
          tensors_.back().name);
  }
}

const WanTensor* TensorMap::find(std::string_view official) const {
  const auto i =
      index_.find(official, [&](std::uint32_t n) { return std::string_view(tensors_[n].name); });
  return i ? &tensors_[*i] : nullptr;
}

TensorMap::Difference TensorMap::compare(std::span<const std::string> expected) const {
  Difference difference;
  std::vector<bool> used(tensors_.size());
  for (const std::string& name : expected) {
    if (const WanTensor* found = find(name)) {
      used[to_size(found - tensors_.data())] = true;
    } else {
      difference.missing.push_back(name);
    }
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!used[i]) difference.unused.emplace_back(tensors_[i].source.tensor.entry->name);
  }
  difference.unused.insert(difference.unused.end(), unknown_.begin(), unknown_.end());
  return difference;
}

}  // namespace ballast::wan
