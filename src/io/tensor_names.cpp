#include "io/tensor_names.h"

#include <array>

#include "core/error.h"

namespace ballast {
namespace {

constexpr std::array<std::string_view, 2> kPrefixes = {"model.diffusion_model.",
                                                       "diffusion_model."};

std::string comfy_prefix(const WeightFiles& checkpoint) {
  std::string found;
  for (const std::string_view prefix : kPrefixes) {
    for (const WeightTensor& t : checkpoint.tensors()) {
      if (!t.entry->name.starts_with(prefix)) continue;
      if (!found.empty()) {
        refuse_tensor(checkpoint.file(t).path(), "quant.prefix", t.entry->name,
                      fmt::format("other tensors begin with \"{}\"", found));
      }
      found = prefix;
      break;
    }
  }
  return found;
}

}  // namespace

TensorNames read_tensor_names(const WeightFiles& checkpoint) {
  TensorNames names;
  names.prefix = comfy_prefix(checkpoint);
  Fp8Scales scales(checkpoint, names.prefix);
  for (const WeightTensor& tensor : checkpoint.tensors()) {
    std::string_view name = tensor.entry->name;
    if (!name.starts_with(names.prefix)) {
      names.outside.push_back(name);
      continue;
    }
    if (scales.describes(tensor)) continue;
    name.remove_prefix(names.prefix.size());
    names.tensors.push_back({scales.scale_of(tensor), name, tensor});
  }
  names.comfy = !names.prefix.empty() || scales.seen();
  return names;
}

}  // namespace ballast
