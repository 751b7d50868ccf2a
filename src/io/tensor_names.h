#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/fp8_scales.h"

namespace ballast {

// A tensor of a model and what belongs to it.
struct NamedTensor : Fp8Scale {
  std::string_view name;  // without the prefix of the file; lives as long as the checkpoint
  WeightTensor tensor;
};

// The tensors of a checkpoint as the model means them: the ComfyUI prefix is taken off, and what
// describes fp8 weights (io/fp8_scales.h) is attached to them instead of being listed. Refused with
// ErrorCode::input and the tensor's name: quant.prefix (two prefixes), and what Fp8Scales refuses.
struct TensorNames {
  std::string prefix;                     // "", "diffusion_model." or "model.diffusion_model."
  bool comfy = false;                     // a prefix, a marker or a scale was seen
  std::vector<NamedTensor> tensors;       // by file, then offset
  std::vector<std::string_view> outside;  // of a prefixed file: names without the prefix
};

TensorNames read_tensor_names(const WeightFiles& checkpoint);

}  // namespace ballast
