#include "io/tensor_names.h"

#include <algorithm>
#include <array>
#include <map>

#include "core/error.h"
#include "io/json_reader.h"
#include "io/limits.h"

namespace ballast {
namespace {

constexpr std::array<std::string_view, 2> kPrefixes = {"model.diffusion_model.",
                                                       "diffusion_model."};
constexpr std::array<std::string_view, 2> kScale = {".scale_weight", ".weight_scale"};
constexpr std::array<std::string_view, 2> kInputScale = {".scale_input", ".input_scale"};
constexpr std::string_view kNote = ".comfy_quant";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kMarker = "scaled_fp8";
constexpr std::string_view kMetadataKey = "_quantization_metadata";

[[noreturn]] void refuse_name(const std::string& path, std::string_view rule,
                              std::string_view tensor, std::string_view what) {
  fail(ErrorCode::input,
       fmt::format("{}: {}: tensor \"{}\": {}", path, rule, printable(tensor), what));
}

bool is_fp8(FileDType t) { return t == FileDType::f8_e4m3 || t == FileDType::f8_e5m2; }

// The fp8 type a format string names; nullopt for formats Ballast does not read.
std::optional<FileDType> fp8_format(std::string_view format) {
  if (format == "float8_e4m3fn") return FileDType::f8_e4m3;
  if (format == "float8_e5m2") return FileDType::f8_e5m2;
  return std::nullopt;
}

class NameReader {
 public:
  explicit NameReader(const WeightFiles& checkpoint) : checkpoint_(checkpoint) {}

  TensorNames read() {
    find_prefix();
    for (const SafetensorsFile& file : checkpoint_.files()) read_metadata(file);
    for (const WeightTensor& tensor : checkpoint_.tensors()) {
      std::string_view name = tensor.entry->name;
      if (!name.starts_with(names_.prefix)) {
        names_.outside.push_back(name);
        continue;
      }
      name.remove_prefix(names_.prefix.size());
      if (name == kMarker) {
        check_marker(tensor);
      } else if (!is_companion(tensor.entry->name)) {
        names_.tensors.push_back(with_scale(name, tensor));
      }
    }
    return std::move(names_);
  }

 private:
  const std::string& path(const WeightTensor& t) const { return checkpoint_.file(t).path(); }

  void find_prefix() {
    for (const std::string_view prefix : kPrefixes) {
      for (const WeightTensor& t : checkpoint_.tensors()) {
        if (!t.entry->name.starts_with(prefix)) continue;
        if (!names_.prefix.empty()) {
          refuse_name(path(t), "quant.prefix", t.entry->name,
                      fmt::format("other tensors begin with \"{}\"", names_.prefix));
        }
        names_.prefix = prefix;
        names_.comfy = true;
        break;
      }
    }
  }

  const WeightTensor* beside(std::string_view layer, std::string_view suffix) const {
    return checkpoint_.find(std::string(layer) + std::string(suffix));
  }

  // Whether the tensor, with its full name, describes a weight that is there.
  bool is_companion(std::string_view name) {
    const auto describes = [&](std::string_view suffix) {
      return name.ends_with(suffix) &&
             beside(name.substr(0, name.size() - suffix.size()), kWeight) != nullptr;
    };
    const bool companion = std::any_of(kScale.begin(), kScale.end(), describes) ||
                           std::any_of(kInputScale.begin(), kInputScale.end(), describes) ||
                           describes(kNote);
    names_.comfy |= companion;
    return companion;
  }

  void check_marker(const WeightTensor& marker) {
    names_.comfy = true;
    const FileDType dtype = marker.entry->dtype;
    if (is_fp8(dtype) || dtype == FileDType::f32) return;  // F32 stands for e4m3
    refuse_name(path(marker), "quant.format", marker.entry->name,
                fmt::format("the marker is {}, not an fp8 type", dtype));
  }

  // _quantization_metadata: {"layers": {"X": {"format": F} or F}}
  void read_metadata(const SafetensorsFile& file) {
    const auto found = file.metadata().find(kMetadataKey);
    if (found == file.metadata().end()) return;
    names_.comfy = true;
    JsonReader json({.text = found->second,
                     .path = fmt::format("{} ({})", file.path(), kMetadataKey),
                     .rule = "quant.json"});
    json.open_object();
    for (std::string_view key; json.next_key(key);) {
      if (key != "layers") {
        json.skip();
        continue;
      }
      json.open_object();
      for (std::string_view layer; json.next_key(layer);) {
        const WeightTensor* weight = beside(layer, kWeight);
        if (weight == nullptr) weight = beside(names_.prefix + std::string(layer), kWeight);
        const std::string name(layer);  // the next string ends the view
        const FileDType format = read_format(json, file.path(), name);
        if (weight == nullptr) continue;
        const auto [place, fresh] = formats_.emplace(weight->entry->name, format);
        if (!fresh && place->second != format) {
          refuse_name(file.path(), "quant.format", name, "it is given two formats");
        }
      }
    }
    json.finish();
  }

  static FileDType read_format(JsonReader& json, const std::string& path, std::string_view layer) {
    std::optional<std::string> format;
    if (json.peek() == JsonReader::Kind::string) {
      format = json.string();
    } else {
      json.open_object();
      for (std::string_view key; json.next_key(key);) {
        if (key == "format") {
          if (format) json.fail_here("the same field twice");
          format = json.string();
        } else {
          json.skip();
        }
      }
    }
    if (!format) refuse_name(path, "quant.format", layer, "its quantisation names no format");
    if (const auto known = fp8_format(*format)) return *known;
    refuse_name(
        path, "quant.format", layer,
        fmt::format("format \"{}\" is not one of float8_e4m3fn, float8_e5m2", printable(*format)));
  }

  FileDType read_note(const WeightTensor& note) const {
    const SafetensorsEntry& entry = *note.entry;
    if (entry.dtype != FileDType::u8 || entry.bytes > limits::kQuantNoteBytes) {
      refuse_name(path(note), "quant.json", entry.name,
                  fmt::format("expected at most {} bytes of U8, found {} of {}",
                              limits::kQuantNoteBytes, entry.bytes, entry.dtype));
    }
    std::string text(entry.bytes, '\0');
    checkpoint_.read(note, std::as_writable_bytes(std::span(text)));
    JsonReader json({.text = text,
                     .path = fmt::format("{} (tensor \"{}\")", path(note), printable(entry.name)),
                     .rule = "quant.json",
                     .file_offset = entry.offset});
    if (json.peek() != JsonReader::Kind::object) json.fail_here("expected an object");
    const FileDType format = read_format(json, path(note), entry.name);
    json.finish();
    return format;
  }

  // The one of two spellings that is there.
  std::optional<WeightTensor> companion(std::string_view layer,
                                        const std::array<std::string_view, 2>& spellings) const {
    const WeightTensor* a = beside(layer, spellings[0]);
    const WeightTensor* b = beside(layer, spellings[1]);
    if (a != nullptr && b != nullptr) {
      refuse_name(path(*a), "quant.scale", layer,
                  fmt::format("it has both {} and {}", spellings[0], spellings[1]));
    }
    if (a == nullptr && b == nullptr) return std::nullopt;
    return a != nullptr ? *a : *b;
  }

  NamedTensor with_scale(std::string_view name, const WeightTensor& tensor) const {
    NamedTensor named;
    named.name = name;
    named.tensor = tensor;
    const std::string_view full = tensor.entry->name;
    if (!full.ends_with(kWeight)) return named;
    const std::string_view layer = full.substr(0, full.size() - kWeight.size());
    named.scale = companion(layer, kScale);
    named.input_scale = companion(layer, kInputScale);
    bool promised = false;
    const auto expect = [&](FileDType format) {
      promised = true;
      if (format == tensor.entry->dtype) return;
      refuse_name(path(tensor), "quant.format", full,
                  fmt::format("it is {}, its quantisation says {}", tensor.entry->dtype, format));
    };
    if (const auto found = formats_.find(full); found != formats_.end()) expect(found->second);
    if (const WeightTensor* note = beside(layer, kNote)) expect(read_note(*note));
    if (named.scale) {
      named.layout = scale_layout(tensor, *named.scale);
    } else if (promised) {
      refuse_name(path(tensor), "quant.scale", full, "it is marked as scaled but has no scale");
    }
    return named;
  }

  ScaleLayout scale_layout(const WeightTensor& weight, const WeightTensor& scale) const {
    const SafetensorsEntry& w = *weight.entry;
    const SafetensorsEntry& s = *scale.entry;
    if (!is_fp8(w.dtype)) {
      refuse_name(path(weight), "quant.scale", w.name,
                  fmt::format("it has a scale but is {}, not fp8", w.dtype));
    }
    if (s.dtype != FileDType::f32 && s.dtype != FileDType::f16 && s.dtype != FileDType::bf16) {
      refuse_name(path(scale), "quant.scale", s.name,
                  fmt::format("a scale is F32, F16 or BF16, this is {}", s.dtype));
    }
    if (s.shape.elements() == 1) return ScaleLayout::tensor;
    const bool matrix = w.shape.rank() == 2;
    if (matrix && s.shape == Shape{w.shape[0], 1}) return ScaleLayout::row;
    if (matrix && s.shape.rank() == 3 && s.shape[1] > 0 && w.shape[1] % s.shape[1] == 0 &&
        s.shape == Shape{w.shape[0], s.shape[1], 1}) {
      return ScaleLayout::group;
    }
    refuse_name(path(scale), "quant.scale", s.name,
                fmt::format("shape {} is not [], [1], [out, 1] or [out, groups, 1] of a weight {}",
                            s.shape, w.shape));
  }

  const WeightFiles& checkpoint_;
  std::map<std::string_view, FileDType> formats_;  // by the full name of the weight
  TensorNames names_;
};

}  // namespace

TensorNames read_tensor_names(const WeightFiles& checkpoint) {
  return NameReader(checkpoint).read();
}

}  // namespace ballast
