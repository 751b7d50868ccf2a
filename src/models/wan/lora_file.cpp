#include "models/wan/lora_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"
#include "models/wan/names.h"

namespace ballast::wan {
namespace {

struct Suffix {
  std::string_view text;
  LoraKey::Part part;
};

constexpr std::array kSuffixes = std::to_array<Suffix>({
    {".lora_A.weight", LoraKey::Part::down},
    {".lora_B.weight", LoraKey::Part::up},
    {".lora_A.default.weight", LoraKey::Part::down},
    {".lora_B.default.weight", LoraKey::Part::up},
    {".lora_down.weight", LoraKey::Part::down},
    {".lora_up.weight", LoraKey::Part::up},
    {"_lora.down.weight", LoraKey::Part::down},
    {"_lora.up.weight", LoraKey::Part::up},
    {".lora.down.weight", LoraKey::Part::down},
    {".lora.up.weight", LoraKey::Part::up},
    {".lora_linear_layer.down.weight", LoraKey::Part::down},
    {".lora_linear_layer.up.weight", LoraKey::Part::up},
    {".lora_A", LoraKey::Part::down},
    {".lora_B", LoraKey::Part::up},
    {".alpha", LoraKey::Part::alpha},
    {".diff", LoraKey::Part::diff},
    {".diff_b", LoraKey::Part::diff_b},
    {".lora_B.bias", LoraKey::Part::up_bias},
    {".dora_scale", LoraKey::Part::other},
    {".lora_magnitude_vector", LoraKey::Part::other},
    {".lora_mid.weight", LoraKey::Part::other},
    {".set_weight", LoraKey::Part::other},
    {".reshape_weight", LoraKey::Part::other},
    {".w_norm", LoraKey::Part::other},
    {".b_norm", LoraKey::Part::other},
    {".lokr_w1", LoraKey::Part::other},
    {".lokr_w1_a", LoraKey::Part::other},
    {".lokr_w1_b", LoraKey::Part::other},
    {".lokr_w2", LoraKey::Part::other},
    {".lokr_w2_a", LoraKey::Part::other},
    {".lokr_w2_b", LoraKey::Part::other},
    {".lokr_t2", LoraKey::Part::other},
    {".hada_w1_a", LoraKey::Part::other},
    {".hada_w1_b", LoraKey::Part::other},
    {".hada_w2_a", LoraKey::Part::other},
    {".hada_w2_b", LoraKey::Part::other},
});

// Which linear layers an underscored name can mean: dots cannot be guessed back, because
// self_attn and cross_attn have underscores of their own.
constexpr std::array kUnderscored = std::to_array<std::string_view>({
    "self_attn.q",
    "self_attn.k",
    "self_attn.v",
    "self_attn.o",
    "cross_attn.q",
    "cross_attn.k",
    "cross_attn.v",
    "cross_attn.o",
    "cross_attn.k_img",
    "cross_attn.v_img",
    "ffn.0",
    "ffn.2",
    "time_embedding.0",
    "time_embedding.2",
    "time_projection.1",
    "text_embedding.0",
    "text_embedding.2",
    "img_emb.proj.1",
    "img_emb.proj.3",
    "head.head",
    "patch_embedding",
});

std::string kohya_module(std::string_view name) {
  std::string block;
  constexpr std::string_view kBlocks = "blocks_";
  if (name.starts_with(kBlocks)) {
    const std::size_t end = name.find('_', kBlocks.size());
    if (end == std::string_view::npos) return "";
    block = fmt::format("blocks.{}.", name.substr(kBlocks.size(), end - kBlocks.size()));
    name.remove_prefix(end + 1);
  }
  for (const std::string_view module : kUnderscored) {
    if (underscored(module) != name) continue;
    const std::string full = block + std::string(module);
    return is_module(full) ? full : "";  // the block may be no number
  }
  return "";
}

bool take_prefix(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return true;
}

struct Module {
  const WeightTensor* down = nullptr;
  const WeightTensor* up = nullptr;
  const WeightTensor* alpha = nullptr;
  bool difference = false;  // it has a .diff or .diff_b
};

double read_scalar(const WeightFiles& checkpoint, const WeightTensor& t) {
  std::array<std::byte, 8> bytes{};
  double value = 0;
  checkpoint.read(t, std::span(bytes).first(t.entry->bytes));
  convert(bytes.data(), checkpoint.dtype(t), &value, DType::f64, 1);
  return value;
}

void judge(const WeightFiles& checkpoint, const std::string& name, const Module& m,
           LoraFile& lora) {
  constexpr std::size_t kAlphasKept = 16;
  const auto problem = [&](std::string text) {
    lora.problems.push_back(fmt::format("{}: {}", printable(name), text));
  };
  if (m.alpha) {
    ++lora.alphas;
    const auto dtype = memory_dtype(m.alpha->entry->dtype);
    if (m.alpha->entry->shape.elements() != 1 || !dtype || !info(*dtype).floating) {
      problem(fmt::format("alpha is {} {}, expected one number", m.alpha->entry->dtype,
                          m.alpha->entry->shape));
    } else if (lora.alpha_values.size() < kAlphasKept) {
      lora.alpha_values.insert(read_scalar(checkpoint, *m.alpha));
    }
  }
  if (!m.down && !m.up && m.difference) return;
  if (!m.down || !m.up) {
    return problem(m.down ? "the second factor is missing"
                   : m.up ? "the first factor is missing"
                          : "alpha without factors");
  }
  const Shape &down = m.down->entry->shape, &up = m.up->entry->shape;
  if (down.rank() < 2 || up.rank() < 2 || down[0] != up[1]) {
    return problem(fmt::format("factors {} and {} do not fit", down, up));
  }
  lora.ranks.insert(down[0]);
  if (!name.ends_with("_attn.q")) return;
  if (lora.dim == 0) lora.dim = down[1];
  if (down[1] != lora.dim || up[0] != lora.dim) {
    problem(fmt::format("factors {} and {} are of another model than the first, of width {}", down,
                        up, lora.dim));
  }
}

}  // namespace

std::int64_t block_number(std::string_view module) {
  std::int64_t n = -1;
  if (take_prefix(module, "blocks.")) {
    std::from_chars(module.data(), module.data() + module.size(), n);
  }
  return n;
}

std::string underscored(std::string_view module) {
  std::string name(module);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

std::string_view name_of(LoraDialect dialect) {
  constexpr std::array<std::string_view, 5> kNames = {"ComfyUI", "kohya", "diffusers", "DiffSynth",
                                                      "PEFT"};
  return kNames[to_size(dialect)];
}

std::optional<LoraKey> parse_lora_key(std::string_view key) {
  const auto suffix = std::find_if(kSuffixes.begin(), kSuffixes.end(),
                                   [&](const Suffix& s) { return key.ends_with(s.text); });
  if (suffix == kSuffixes.end()) return std::nullopt;
  std::string_view name = key.substr(0, key.size() - suffix->text.size());
  if (take_prefix(name, "lora_unet_")) {
    take_prefix(name, "_");  // VideoX-Fun writes two underscores
    return LoraKey{LoraDialect::kohya, kohya_module(name), suffix->part};
  }
  LoraDialect dialect = LoraDialect::peft;
  if (take_prefix(name, "transformer.")) {
    dialect = LoraDialect::diffusers;
  } else if (take_prefix(name, "diffusion_model.")) {
    dialect = LoraDialect::comfy;
  } else if (!take_prefix(name, "base_model.model.") &&
             suffix->text.find(".default.") != std::string_view::npos) {
    dialect = LoraDialect::diffsynth;
  }
  // diffusers names stand behind any prefix; official ones are their own translation back.
  if (auto official = official_name(name); official && *official != name) {
    if (!is_module(*official)) official->clear();
    return LoraKey{LoraDialect::diffusers, std::move(*official), suffix->part};
  }
  return LoraKey{dialect, is_module(name) ? std::string(name) : "", suffix->part};
}

std::optional<LoraFile> recognise_lora(const WeightFiles& checkpoint) {
  LoraFile lora;
  std::map<std::string, Module> modules;
  std::vector<std::string> unknown;
  std::array<std::int64_t, 5> keys_of_dialect{};
  for (const WeightTensor& t : checkpoint.tensors()) {
    const auto key = parse_lora_key(t.entry->name);
    if (!key || key->module.empty()) {
      unknown.push_back(
          fmt::format("{} is not part of a LoRA for this model", printable(t.entry->name)));
      continue;
    }
    ++keys_of_dialect[to_size(key->dialect)];
    Module& m = modules[key->module];
    const WeightTensor** place = key->part == LoraKey::Part::down    ? &m.down
                                 : key->part == LoraKey::Part::up    ? &m.up
                                 : key->part == LoraKey::Part::alpha ? &m.alpha
                                                                     : nullptr;
    if (key->part == LoraKey::Part::diff || key->part == LoraKey::Part::diff_b ||
        key->part == LoraKey::Part::up_bias) {
      m.difference = true;
    } else if (!place) {
      unknown.push_back(
          fmt::format("{}: Ballast does not use this part", printable(t.entry->name)));
    } else if (*place) {
      unknown.push_back(
          fmt::format("{} repeats {}", printable(t.entry->name), printable((*place)->entry->name)));
    } else {
      *place = &t;
    }
  }
  const bool any = std::any_of(modules.begin(), modules.end(), [](const auto& m) {
    return m.second.down || m.second.up || m.second.difference;
  });
  if (!any) return std::nullopt;
  lora.dialect = static_cast<LoraDialect>(
      std::max_element(keys_of_dialect.begin(), keys_of_dialect.end()) - keys_of_dialect.begin());
  std::set<std::int64_t> blocks;
  for (const auto& [name, module] : modules) {
    ++lora.modules;
    if (const std::int64_t n = block_number(name); n >= 0) blocks.insert(n);
    judge(checkpoint, name, module, lora);
  }
  lora.blocks = static_cast<std::int64_t>(blocks.size());
  lora.problems.insert(lora.problems.end(), unknown.begin(), unknown.end());
  return lora;
}

}  // namespace ballast::wan
