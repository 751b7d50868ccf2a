#include "models/wan/lora_read.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "core/non_finite.h"
#include "core/path_kind.h"
#include "core/to_size.h"
#include "io/limits.h"
#include "memory/text_file.h"
#include "models/wan/names.h"
#include "models/wan/params.h"
#include "models/wan/peft_config.h"

namespace ballast::wan {
namespace {

constexpr std::int64_t kMaxBlocks = 4096;  // far above any model; a number from a file

// The keys of one module.
struct Parts {
  const WeightTensor* down = nullptr;
  const WeightTensor* up = nullptr;
  const WeightTensor* alpha = nullptr;
  const WeightTensor* diff = nullptr;
  const WeightTensor* diff_b = nullptr;
  const WeightTensor* up_bias = nullptr;

  const WeightTensor** place(LoraKey::Part part) {
    switch (part) {
      case LoraKey::Part::down:
        return &down;
      case LoraKey::Part::up:
        return &up;
      case LoraKey::Part::alpha:
        return &alpha;
      case LoraKey::Part::diff:
        return &diff;
      case LoraKey::Part::diff_b:
        return &diff_b;
      case LoraKey::Part::up_bias:
        return &up_bias;
      case LoraKey::Part::other:
        break;
    }
    return nullptr;
  }
};

// Blocks by number, what stands outside them first.
struct ModuleOrder {
  bool operator()(const std::string& a, const std::string& b) const {
    const std::int64_t x = block_number(a), y = block_number(b);
    return x != y ? x < y : a < b;
  }
};
using PartsByModule = std::map<std::string, Parts, ModuleOrder>;

[[noreturn]] void refuse(const WeightFiles& checkpoint, std::string_view key,
                         std::string_view what) {
  fail(ErrorCode::input, fmt::format("{}: {}: {}", checkpoint.path(), printable(key), what),
       {{"ballast inspect " + checkpoint.path(), "lists the tensors it has"}});
}

LoraNumbers numbers_of(const WeightFiles& checkpoint, const WeightTensor& t) {
  const DType dtype = checkpoint.dtype(t);
  if (!info(dtype).floating) {
    refuse(checkpoint, t.entry->name,
           fmt::format("it is {}, expected floating-point numbers", dtype));
  }
  return {.shape = t.entry->shape,
          .dtype = dtype,
          .memory = nullptr,
          .extent = checkpoint.extent(t),
          .key = std::string(t.entry->name)};
}

double read_alpha(const WeightFiles& checkpoint, const WeightTensor& t) {
  const LoraNumbers n = numbers_of(checkpoint, t);
  if (n.elements() != 1) {
    refuse(checkpoint, n.key, fmt::format("alpha is {}, expected one number", n.shape));
  }
  float alpha = 0;
  n.read(0, std::span(&alpha, 1));
  if (!std::isfinite(alpha)) refuse(checkpoint, n.key, fmt::format("alpha is {}", alpha));
  return alpha;
}

std::optional<PeftConfig> peft_config(const WeightFiles& checkpoint) {
  const SafetensorsFile& file = checkpoint.files()[0];
  if (const auto entry = file.metadata().find(kPeftMetadata); entry != file.metadata().end()) {
    return read_peft_config({.text = entry->second,
                             .path = fmt::format("{} ({})", file.path(), kPeftMetadata),
                             .rule = "lora.peft"});
  }
  const std::filesystem::path path(file.path());
  const std::filesystem::path config = path.parent_path() / "adapter_config.json";
  if (path.filename() != "adapter_model.safetensors" || !is_file(config)) {
    return std::nullopt;
  }
  const std::string text =
      read_text_file(config.string(), limits::kConfigBytes, "an adapter_config.json");
  return read_peft_config({.text = text, .path = config.string(), .rule = "lora.peft"});
}

class ModuleReader {
 public:
  ModuleReader(const WeightFiles& checkpoint, const Config* model)
      : checkpoint_(checkpoint), peft_(peft_config(checkpoint)), checks_model_(model != nullptr) {
    if (!model) return;
    each_parameter(*model, [&](int, const std::string& name, const Shape& shape) {
      shapes_.emplace(name, shape);
    });
  }

  LoraModule read(const std::string& name, const Parts& parts) const {
    if (block_number(name) >= kMaxBlocks) {
      refuse(checkpoint_, name, fmt::format("no model has {} blocks", block_number(name)));
    }
    LoraModule m;
    m.name = name;
    if (parts.down || parts.up) read_factors(parts, m);
    if (m.rank == 0 && parts.alpha && !parts.diff && !parts.diff_b) {
      refuse(checkpoint_, parts.alpha->entry->name, "alpha without factors");
    }
    if (parts.diff) m.diff = numbers_of(checkpoint_, *parts.diff);
    if (parts.diff_b) m.diff_b = numbers_of(checkpoint_, *parts.diff_b);
    if (parts.up_bias) read_up_bias(parts, m);
    if (checks_model_) check_against_model(m);
    return m;
  }

 private:
  void read_factors(const Parts& parts, LoraModule& m) const {
    if (!parts.down || !parts.up) {
      const WeightTensor* there = parts.down ? parts.down : parts.up;
      refuse(
          checkpoint_, there->entry->name,
          fmt::format("the {} factor of {} is missing", parts.down ? "second" : "first", m.name));
    }
    m.down = numbers_of(checkpoint_, *parts.down);
    m.up = numbers_of(checkpoint_, *parts.up);
    const Shape &down = m.down.shape, &up = m.up.shape;
    // Of a convolution's factors the dimensions behind are those of the kernel, and ones.
    const bool fits = down.rank() >= 2 && up.rank() >= 2 && down[0] == up[1] && down[0] > 0 &&
                      down.elements() > 0 && up.elements() == up[0] * up[1] && up[0] > 0;
    if (!fits) {
      refuse(checkpoint_, m.down.key,
             fmt::format("factors {} and {} ({}) do not fit, expected [rank, in] and [out, rank]",
                         down, up, printable(m.up.key)));
    }
    m.rank = down[0];
    m.alpha = static_cast<double>(m.rank);
    if (parts.alpha) {
      m.alpha = read_alpha(checkpoint_, *parts.alpha);
    } else if (peft_) {
      const std::array names = {m.name, diffusers_name(m.name).value_or("")};
      m.alpha = peft_->alpha_of(names, m.rank).value_or(m.alpha);
    }
  }

  // PEFT scales it with the product.
  void read_up_bias(const Parts& parts, LoraModule& m) const {
    const std::string_view key = parts.up_bias->entry->name;
    if (m.diff_b) refuse(checkpoint_, key, "there is a .diff_b too");
    if (m.rank > 0 && m.scale() != 1) {
      refuse(checkpoint_, key,
             fmt::format("a bias of the second factor with scale {}; only scale 1 is read",
                         m.scale()));
    }
    m.diff_b = numbers_of(checkpoint_, *parts.up_bias);
  }

  void check_against_model(const LoraModule& m) const {
    const auto expect = [&](const LoraNumbers& n, const std::string& tensor, bool fits) {
      const auto found = shapes_.find(tensor);
      if (found == shapes_.end()) {
        refuse(checkpoint_, n.key, fmt::format("the model has no {}", tensor));
      }
      if (fits) return;
      refuse(checkpoint_, n.key,
             fmt::format("shape {} does not fit {} of the model, which is {}", n.shape, tensor,
                         found->second));
    };
    const auto shape = [&](const std::string& tensor) {
      const auto found = shapes_.find(tensor);
      return found == shapes_.end() ? Shape{0} : found->second;
    };
    const std::string weight = m.name + ".weight", bias = m.name + ".bias";
    if (m.rank > 0) {
      const Shape w = shape(weight);
      expect(m.down, weight, m.in() * w[0] == w.elements());
      expect(m.up, weight, m.out() == w[0]);
    }
    if (m.diff) expect(*m.diff, weight, m.diff->shape == shape(weight));
    if (m.diff_b) expect(*m.diff_b, bias, m.diff_b->elements() == shape(bias).elements());
  }

  const WeightFiles& checkpoint_;
  std::optional<PeftConfig> peft_;
  bool checks_model_;
  std::map<std::string, Shape, std::less<>> shapes_;
};

}  // namespace

LoraReader LoraReader::open(const std::string& path, const Config* model, DiskMode mode) {
  LoraReader reader(WeightFiles::open(path, mode));
  const WeightFiles& checkpoint = reader.checkpoint_;
  PartsByModule modules;
  std::array<std::int64_t, 5> keys_of_dialect{};
  for (const WeightTensor& t : checkpoint.tensors()) {
    const std::string_view name = t.entry->name;
    const auto key = parse_lora_key(name);
    if (!key || key->module.empty()) {
      reader.unused_.emplace_back(name);
      continue;
    }
    const WeightTensor** place = modules[key->module].place(key->part);
    if (!place) {
      refuse(checkpoint, name,
             "Ballast does not read this kind of adapter; without it the others "
             "would mean something else");
    }
    if (*place) {
      refuse(checkpoint, name, fmt::format("{} is the same", printable((*place)->entry->name)));
    }
    *place = &t;
    ++keys_of_dialect[to_size(key->dialect)];
  }
  if (modules.empty()) {
    fail(ErrorCode::input,
         fmt::format("{} holds no LoRA for this model: none of its {} tensors is a factor of a "
                     "layer it has",
                     checkpoint.path(), checkpoint.tensors().size()),
         {{"ballast inspect " + checkpoint.path(), "shows what it is"}});
  }
  reader.dialect_ = static_cast<LoraDialect>(
      std::max_element(keys_of_dialect.begin(), keys_of_dialect.end()) - keys_of_dialect.begin());
  const ModuleReader module_reader(checkpoint, model);
  reader.modules_.reserve(modules.size());
  for (const auto& [name, parts] : modules) {
    reader.modules_.push_back(module_reader.read(name, parts));
  }
  return reader;
}

const LoraModule* LoraReader::find(std::string_view official) const {
  const auto found = std::find_if(modules_.begin(), modules_.end(),
                                  [&](const LoraModule& m) { return m.name == official; });
  return found == modules_.end() ? nullptr : &*found;
}

std::vector<std::string> init_factors(const LoraReader& file, std::span<const LoraTarget> targets,
                                      double target_scale) {
  check(target_scale != 0, "factors of scale 0");
  std::map<std::string_view, const LoraModule*> left;
  for (const LoraModule& m : file.modules()) left.emplace(m.name, &m);
  std::vector<std::string> absent;
  std::vector<float> values;
  const auto fill = [&](const LoraNumbers& from, const Shape& shape, const LoraTarget::Put& put,
                        float factor) {
    if (from.elements() != shape.elements() || from.shape[0] != shape[0]) {
      fail(ErrorCode::input, "{}: {} is {}, this run needs {}", file.path(), printable(from.key),
           from.shape, shape);
    }
    values.resize(to_size(shape.elements()));
    from.read(0, values);
    if (const auto bad = first_non_finite(std::as_bytes(std::span(values)), DType::f32)) {
      fail(ErrorCode::input,
           "{}: {} holds NaN or infinity, first at element {}; with it every result "
           "would be NaN",
           file.path(), printable(from.key), *bad);
    }
    if (factor != 1) {
      for (float& v : values) v *= factor;
    }
    put(values);
  };
  for (const LoraTarget& target : targets) {
    const auto found = left.find(target.name);
    if (found == left.end()) {
      absent.push_back(target.name);
      continue;
    }
    const LoraModule& m = *found->second;
    left.erase(found);
    if (m.rank != target.down[0]) {
      fail(ErrorCode::input, m.rank == 0
                                 ? fmt::format("{}: {} has no factors", file.path(), m.name)
                                 : fmt::format("{}: {} has rank {}, this run trains rank {}",
                                               file.path(), m.name, m.rank, target.down[0]));
    }
    if (m.diff || m.diff_b) {
      fail(ErrorCode::input,
           fmt::format("{}: {} adds to the layer itself; training starts from factors alone",
                       file.path(), printable(m.diff ? m.diff->key : m.diff_b->key)),
           {{"ballast convert merge", "puts it into the model"}});
    }
    const FoldedScale fold = fold_scale(m.scale() / target_scale);
    fill(m.down, target.down, target.put_down, fold.down);
    fill(m.up, target.up, target.put_up, fold.up);
  }
  if (!left.empty()) {
    fail(ErrorCode::input, "{}: {} modules are not trained by this run, the first is {}",
         file.path(), left.size(), left.begin()->first);
  }
  return absent;
}

}  // namespace ballast::wan
