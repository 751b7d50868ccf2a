#include "models/wan/lora_write.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/error.h"
#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "models/wan/lora_file.h"
#include "models/wan/names.h"
#include "models/wan/peft_config.h"

namespace ballast::wan {
namespace {

constexpr std::int64_t kPiece = 64 << 10;  // elements handed to the file at once

// What describes the form of a kohya file and would be wrong in any other.
constexpr std::array kKohyaMetadata = std::to_array<std::string_view>({
    "ss_base_model_version",
    "ss_network_module",
    "ss_network_dim",
    "ss_network_alpha",
    "ss_network_args",
    "modelspec.sai_model_spec",
    "modelspec.architecture",
    "sshs_model_hash",
    "sshs_legacy_hash",
});

constexpr std::array kBlockModules = std::to_array<std::string_view>({
    "cross_attn.k",
    "cross_attn.o",
    "cross_attn.q",
    "cross_attn.v",
    "ffn.0",
    "ffn.2",
    "self_attn.k",
    "self_attn.o",
    "self_attn.q",
    "self_attn.v",
});

struct Suffixes {
  std::string_view down, up;
};
Suffixes suffixes(LoraFormat format) {
  if (format == LoraFormat::kohya) return {".lora_down.weight", ".lora_up.weight"};
  return {".lora_A.weight", ".lora_B.weight"};
}

std::string file_name(LoraFormat format, const std::string& module) {
  switch (format) {
    case LoraFormat::comfy:
      return "diffusion_model." + module;
    case LoraFormat::kohya:
      return "lora_unet_" + underscored(module);
    case LoraFormat::peft:
      break;
  }
  const auto name = diffusers_name(module);
  check(name.has_value(), "{} has no diffusers name", module);
  return "transformer." + *name;
}

void hand_over(const LoraNumbers& n, float factor, DType dtype, const std::string& key,
               const ByteSink& sink) {
  const std::int64_t most = std::min(kPiece, n.elements());
  std::vector<float> values(to_size(most));
  std::vector<std::byte> bytes(to_size(most) * std::max(size_of(dtype), size_of(n.dtype)));
  const bool as_it_is = factor == 1 && dtype == n.dtype;
  for (std::int64_t first = 0; first < n.elements(); first += most) {
    const std::int64_t count = std::min(most, n.elements() - first);
    if (as_it_is) {
      n.read(first, count, bytes.data());
    } else {
      const auto piece = std::span(values).first(to_size(count));
      n.read(first, piece);
      for (float& v : piece) v *= factor;
      store_numbers(piece, dtype, bytes.data(), key);
    }
    sink(std::span(bytes).first(to_size(count) * size_of(dtype)));
  }
}

// Sizes that the modules of one model share, found where a module tells them.
struct Widths {
  std::int64_t dim = 0, ffn = 0, rank = 0;
};

Widths widths_of(std::span<const LoraModule> modules, const Config* model) {
  Widths w;
  std::map<std::int64_t, std::int64_t> ranks;
  for (const LoraModule& m : modules) {
    if (m.rank == 0 || block_number(m.name) < 0) continue;
    ++ranks[m.rank];
    if (m.name.ends_with(".ffn.0")) {
      w.dim = m.in(), w.ffn = m.out();
    } else if (m.name.ends_with(".ffn.2")) {
      w.dim = m.out(), w.ffn = m.in();
    } else {
      w.dim = m.out();
    }
  }
  if (model) w.dim = model->dim, w.ffn = model->ffn_dim;
  const auto common = std::max_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (common != ranks.end()) w.rank = common->first;
  return w;
}

// Modules of zeros for those that are missing: diffusers reads blocks 0 to n - 1 with all modules
// or not at all.
std::vector<LoraModule> missing_modules(std::span<const LoraModule> modules, const Config* model) {
  std::set<std::string_view> there;
  std::int64_t blocks = model ? model->layers : 0;
  bool image = false;
  DType dtype = DType::f32;
  for (const LoraModule& m : modules) {
    if (m.rank == 0) continue;
    there.insert(m.name);
    dtype = m.down.dtype;
    blocks = std::max(blocks, block_number(m.name) + 1);
    image |= m.name.ends_with("_img");
  }
  const Widths w = widths_of(modules, model);
  // That of the others, so that the file has one alpha where they have; for zeros any is right.
  auto alpha = static_cast<double>(w.rank);
  for (const LoraModule& m : modules) {
    if (m.rank == w.rank) alpha = m.alpha;
  }
  std::vector<LoraModule> missing;
  const auto add = [&](std::int64_t block, std::string_view module) {
    std::string name = fmt::format("blocks.{}.{}", block, module);
    if (there.contains(name)) return;
    const std::int64_t in = module == "ffn.2" ? w.ffn : w.dim;
    const std::int64_t out = module == "ffn.0" ? w.ffn : w.dim;
    if (in == 0 || out == 0) {
      fail(
          ErrorCode::input,
          fmt::format("the LoRA has no {}, which a kohya file needs, and none of its modules tells "
                      "the size",
                      name),
          {{"--model FILE", "gives the sizes"}, {"--to comfy", "may leave modules out"}});
    }
    LoraModule m;
    m.name = std::move(name);
    m.rank = w.rank;
    m.alpha = alpha;
    m.down = {.shape = {w.rank, in}, .dtype = dtype};
    m.up = {.shape = {out, w.rank}, .dtype = dtype};
    missing.push_back(std::move(m));
  };
  if (w.rank == 0) return missing;  // nothing but differences
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (const std::string_view module : kBlockModules) add(block, module);
    if (image) add(block, "cross_attn.k_img"), add(block, "cross_attn.v_img");
  }
  return missing;
}

// "32", or "Dynamic" where modules differ.
template <class Value>
std::string common_value(std::span<const LoraModule> modules, Value&& value) {
  std::set<double> values;
  for (const LoraModule& m : modules) {
    if (m.rank > 0) values.insert(value(m));
  }
  return values.size() == 1 ? fmt::format("{}", *values.begin()) : "Dynamic";
}

Metadata metadata_of(std::span<const LoraModule> modules, const LoraWriteOptions& options) {
  Metadata metadata = options.metadata;
  metadata["format"] = "pt";
  metadata.erase(std::string(kPeftMetadata));
  if (options.format == LoraFormat::kohya) {
    metadata.try_emplace("ss_base_model_version", "wan");
    metadata.try_emplace("ss_network_module", "networks.lora_wan");
    metadata.try_emplace("ss_network_args", "{}");
    metadata.try_emplace("modelspec.sai_model_spec", "1.0.0");
    metadata.try_emplace("modelspec.architecture", "wan2.1/lora");
    metadata.erase("sshs_model_hash");  // of the file they came from
    metadata.erase("sshs_legacy_hash");
    metadata["ss_network_dim"] =
        common_value(modules, [](const LoraModule& m) { return static_cast<double>(m.rank); });
    metadata["ss_network_alpha"] =
        common_value(modules, [](const LoraModule& m) { return m.alpha; });
    return metadata;
  }
  for (const std::string_view key : kKohyaMetadata) metadata.erase(std::string(key));
  if (options.format == LoraFormat::peft) {
    std::vector<std::string> names;
    for (const LoraModule& m : modules) names.push_back(diffusers_name(m.name).value_or(m.name));
    metadata[std::string(kPeftMetadata)] = peft_config_json(modules, names, 0, "transformer.");
  }
  return metadata;
}

void add_module(SafetensorsWriter& writer, const LoraModule& m, const LoraWriteOptions& options) {
  const std::string name = file_name(options.format, m.name);
  const auto add = [&](const LoraNumbers& n, const std::string& key, float factor) {
    DType dtype = options.dtype.value_or(n.dtype);
    if (factor != 1 && dtype == DType::f64) dtype = DType::f32;  // what it is computed in
    writer.add(key, dtype, n.shape, [n, factor, dtype, key](const ByteSink& sink) {
      hand_over(n, factor, dtype, key, sink);
    });
  };
  const bool folds = options.format != LoraFormat::kohya;
  if (m.rank > 0) {
    const FoldedScale fold = folds ? fold_scale(m.scale()) : FoldedScale{};
    const Suffixes suffix = suffixes(options.format);
    add(m.down, name + std::string(suffix.down), fold.down);
    add(m.up, name + std::string(suffix.up), fold.up);
    if (!folds) {
      // f32 in any file: an alpha of 0.3 has no bf16.
      const auto alpha = static_cast<float>(m.alpha);
      writer.add(name + ".alpha", DType::f32, Shape{},
                 [alpha](const ByteSink& sink) { sink(std::as_bytes(std::span(&alpha, 1))); });
    }
  }
  if (options.format == LoraFormat::peft) {
    if (m.diff || (m.diff_b && m.rank == 0)) {
      fail(ErrorCode::input,
           fmt::format("{}: PEFT files hold factors only, not a difference of the {} itself",
                       printable(m.diff ? m.diff->key : m.diff_b->key), m.diff ? "weight" : "bias"),
           {{"--to comfy", "keeps it"}});
    }
    if (m.diff_b) add(*m.diff_b, name + ".lora_B.bias", 1);
    return;
  }
  if (m.diff) add(*m.diff, name + ".diff", 1);
  if (m.diff_b) add(*m.diff_b, name + ".diff_b", 1);
}

}  // namespace

std::string_view name_of(LoraFormat format) {
  constexpr std::array<std::string_view, 3> kNames = {"comfy", "kohya", "peft"};
  return kNames[to_size(format)];
}

std::optional<LoraFormat> find_lora_format(std::string_view name) {
  for (const LoraFormat f : {LoraFormat::comfy, LoraFormat::kohya, LoraFormat::peft}) {
    if (name == name_of(f)) return f;
  }
  return std::nullopt;
}

LoraWritten write_lora(const std::string& path, std::span<const LoraModule> modules,
                       const LoraWriteOptions& options) {
  std::vector<LoraModule> all(modules.begin(), modules.end());
  if (options.format == LoraFormat::kohya) {
    const auto missing = missing_modules(modules, options.model);
    all.insert(all.end(), missing.begin(), missing.end());
  }
  SafetensorsWriter writer({.metadata = metadata_of(all, options)});
  for (const LoraModule& m : all) add_module(writer, m, options);
  writer.write(path);
  return {.modules = std::ssize(all),
          .filled = std::ssize(all) - std::ssize(modules),
          .bytes = writer.file_bytes()};
}

void write_adapter_config(const std::string& folder, std::span<const LoraModule> modules,
                          double dropout) {
  std::vector<std::string> names;
  for (const LoraModule& m : modules) names.push_back(m.name);
  AtomicFile file(folder + "/adapter_config.json");
  file.write(peft_config_json(modules, names, dropout, "") + "\n");
  file.commit();
}

}  // namespace ballast::wan
