#include "io/weight_file_parts.h"

#include <array>

#include "core/path_kind.h"

namespace ballast {
namespace {

constexpr std::string_view kTransformerPart = "model.diffusion_model.";
constexpr std::array<std::string_view, 2> kVaeParts = {"first_stage_model.", "vae."};
constexpr std::string_view kTextParts = "text_encoders.";
constexpr std::string_view kTextModule = ".transformer.";
constexpr std::string_view kStoredTokenizer = "spiece_model";

// What is in front of the names of a part; "": the tensor is none of it.
std::string_view prefix_of(std::string_view tensor, ModelPart part) {
  if (part == ModelPart::vae) {
    for (const std::string_view prefix : kVaeParts) {
      if (tensor.starts_with(prefix)) return prefix;
    }
    return {};
  }
  if (!tensor.starts_with(kTextParts)) return {};
  const std::size_t at = tensor.find(kTextModule);
  return at == std::string_view::npos ? std::string_view()
                                      : tensor.substr(0, at + kTextModule.size());
}

}  // namespace

PartsInFile parts_in(const WeightFiles& checkpoint) {
  PartsInFile parts;
  for (const WeightTensor& t : checkpoint.tensors()) {
    const std::string_view name = t.entry->name;
    parts.transformer |= name.starts_with(kTransformerPart);
    parts.vae |= !prefix_of(name, ModelPart::vae).empty();
    parts.text_encoder |= !prefix_of(name, ModelPart::text_encoder).empty();
  }
  for (const SafetensorsFile& f : checkpoint.files()) {
    parts.tokenizer |= find_stored_tokenizer(f) != nullptr;
  }
  return parts;
}

PartsInFile parts_in_file(const std::string& path) {
  if (!path.ends_with(".safetensors") || !is_file(path)) return {};
  return parts_in(WeightFiles::open(path, DiskMode::buffered));
}

bool is_of_another_part(std::string_view tensor) {
  return tensor.starts_with(kTextParts) || !prefix_of(tensor, ModelPart::vae).empty();
}

WeightFiles open_part(const std::string& path, ModelPart part, DiskMode mode) {
  WeightFiles checkpoint = WeightFiles::open(path, mode);
  for (const WeightTensor& t : checkpoint.tensors()) {
    const std::string_view prefix = prefix_of(t.entry->name, part);
    if (prefix.empty()) continue;
    checkpoint.keep_part(std::string(prefix));
    break;
  }
  return checkpoint;
}

const SafetensorsEntry* find_stored_tokenizer(const SafetensorsFile& file) {
  for (const SafetensorsEntry& e : file.entries()) {
    const bool named =
        e.name == kStoredTokenizer ||
        (e.name.starts_with(kTextParts) && e.name.ends_with("." + std::string(kStoredTokenizer)));
    if (named && e.dtype == FileDType::u8 && e.shape.rank() == 1) return &e;
  }
  return nullptr;
}

}  // namespace ballast
