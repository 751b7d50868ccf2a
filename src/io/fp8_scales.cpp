#include "io/fp8_scales.h"

#include <algorithm>
#include <span>

#include "core/error.h"
#include "io/json_reader.h"
#include "io/limits.h"

namespace ballast {
namespace {

constexpr std::array<std::string_view, 2> kScale = {".scale_weight", ".weight_scale"};
constexpr std::array<std::string_view, 2> kInputScale = {".scale_input", ".input_scale"};
constexpr std::string_view kNote = ".comfy_quant";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kMarker = "scaled_fp8";
constexpr std::string_view kMetadataKey = "_quantization_metadata";

bool is_fp8(FileDType t) { return t == FileDType::f8_e4m3 || t == FileDType::f8_e5m2; }

// The fp8 type a format string names; nullopt for formats Ballast does not read.
std::optional<FileDType> fp8_format(std::string_view format) {
  if (format == "float8_e4m3fn") return FileDType::f8_e4m3;
  if (format == "float8_e5m2") return FileDType::f8_e5m2;
  return std::nullopt;
}

FileDType read_format(JsonReader& json, const std::string& path, std::string_view layer) {
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
  if (!format) refuse_tensor(path, "quant.format", layer, "its quantisation names no format");
  if (const auto known = fp8_format(*format)) return *known;
  refuse_tensor(
      path, "quant.format", layer,
      fmt::format("format \"{}\" is not one of float8_e4m3fn, float8_e5m2", printable(*format)));
}

}  // namespace

void refuse_tensor(const std::string& path, std::string_view rule, std::string_view tensor,
                   std::string_view what) {
  fail(ErrorCode::input, "{}: {}: tensor \"{}\": {}", path, rule, printable(tensor), what);
}

Fp8Scales::Fp8Scales(const WeightFiles& files, std::string_view prefix)
    : files_(files), prefix_(prefix) {
  for (const SafetensorsFile& file : files.files()) read_metadata(file);
}

const WeightTensor* Fp8Scales::beside(std::string_view layer, std::string_view suffix) const {
  return files_.find(std::string(layer) + std::string(suffix));
}

// Whether a tensor of this full name describes a weight that is there.
bool Fp8Scales::is_companion(std::string_view name) const {
  const auto describes = [&](std::string_view suffix) {
    return name.ends_with(suffix) &&
           beside(name.substr(0, name.size() - suffix.size()), kWeight) != nullptr;
  };
  return std::any_of(kScale.begin(), kScale.end(), describes) ||
         std::any_of(kInputScale.begin(), kInputScale.end(), describes) || describes(kNote);
}

void Fp8Scales::check_marker(const WeightTensor& marker) const {
  const FileDType dtype = marker.entry->dtype;
  if (is_fp8(dtype) || dtype == FileDType::f32) return;  // F32 stands for e4m3
  refuse_tensor(path(marker), "quant.format", marker.entry->name,
                fmt::format("the marker is {}, not an fp8 type", dtype));
}

bool Fp8Scales::describes(const WeightTensor& tensor) {
  std::string_view name = tensor.entry->name;
  const bool marks = name.starts_with(prefix_) && name.substr(prefix_.size()) == kMarker;
  if (marks) check_marker(tensor);
  const bool found = marks || is_companion(name);
  seen_ |= found;
  return found;
}

// _quantization_metadata: {"layers": {"X": {"format": F} or F}}
void Fp8Scales::read_metadata(const SafetensorsFile& file) {
  const auto found = file.metadata().find(kMetadataKey);
  if (found == file.metadata().end()) return;
  seen_ = true;
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
      if (weight == nullptr) weight = beside(std::string(prefix_) + std::string(layer), kWeight);
      const std::string name(layer);  // the next string ends the view
      const FileDType format = read_format(json, file.path(), name);
      if (weight == nullptr) continue;
      const auto [place, fresh] = formats_.emplace(weight->entry->name, format);
      if (!fresh && place->second != format) {
        refuse_tensor(file.path(), "quant.format", name, "it is given two formats");
      }
    }
  }
  json.finish();
}

FileDType Fp8Scales::read_note(const WeightTensor& note) const {
  const SafetensorsEntry& entry = *note.entry;
  if (entry.dtype != FileDType::u8 || entry.bytes > limits::kQuantNoteBytes) {
    refuse_tensor(path(note), "quant.json", entry.name,
                  fmt::format("expected at most {} bytes of U8, found {} of {}",
                              limits::kQuantNoteBytes, entry.bytes, entry.dtype));
  }
  std::string text(entry.bytes, '\0');
  files_.read(note, std::as_writable_bytes(std::span(text)));
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
std::optional<WeightTensor> Fp8Scales::companion(
    std::string_view layer, const std::array<std::string_view, 2>& spellings) const {
  const WeightTensor* a = beside(layer, spellings[0]);
  const WeightTensor* b = beside(layer, spellings[1]);
  if (a != nullptr && b != nullptr) {
    refuse_tensor(path(*a), "quant.scale", layer,
                  fmt::format("it has both {} and {}", spellings[0], spellings[1]));
  }
  if (a == nullptr && b == nullptr) return std::nullopt;
  return a != nullptr ? *a : *b;
}

Fp8Scale Fp8Scales::scale_of(const WeightTensor& tensor) const {
  Fp8Scale found;
  const std::string_view full = tensor.entry->name;
  if (!full.ends_with(kWeight)) return found;
  const std::string_view layer = full.substr(0, full.size() - kWeight.size());
  found.scale = companion(layer, kScale);
  found.input_scale = companion(layer, kInputScale);
  bool promised = false;
  const auto expect = [&](FileDType format) {
    promised = true;
    if (format == tensor.entry->dtype) return;
    refuse_tensor(path(tensor), "quant.format", full,
                  fmt::format("it is {}, its quantisation says {}", tensor.entry->dtype, format));
  };
  if (const auto at = formats_.find(full); at != formats_.end()) expect(at->second);
  if (const WeightTensor* note = beside(layer, kNote)) expect(read_note(*note));
  if (found.scale) {
    found.layout = layout_of(tensor, *found.scale);
  } else if (promised) {
    refuse_tensor(path(tensor), "quant.scale", full, "it is marked as scaled but has no scale");
  }
  return found;
}

ScaleLayout Fp8Scales::layout_of(const WeightTensor& weight, const WeightTensor& scale) const {
  const SafetensorsEntry& w = *weight.entry;
  const SafetensorsEntry& s = *scale.entry;
  if (!is_fp8(w.dtype)) {
    refuse_tensor(path(weight), "quant.scale", w.name,
                  fmt::format("it has a scale but is {}, not fp8", w.dtype));
  }
  if (s.dtype != FileDType::f32 && s.dtype != FileDType::f16 && s.dtype != FileDType::bf16) {
    refuse_tensor(path(scale), "quant.scale", s.name,
                  fmt::format("a scale is F32, F16 or BF16, this is {}", s.dtype));
  }
  if (s.shape.elements() == 1) return ScaleLayout::tensor;
  const bool matrix = w.shape.rank() == 2;
  if (matrix && s.shape == Shape{w.shape[0], 1}) return ScaleLayout::row;
  if (matrix && s.shape.rank() == 3 && s.shape[1] > 0 && w.shape[1] % s.shape[1] == 0 &&
      s.shape == Shape{w.shape[0], s.shape[1], 1}) {
    return ScaleLayout::group;
  }
  refuse_tensor(path(scale), "quant.scale", s.name,
                fmt::format("shape {} is not [], [1], [out, 1] or [out, groups, 1] of a weight {}",
                            s.shape, w.shape));
}

}  // namespace ballast
