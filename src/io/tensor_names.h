#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/weight_files.h"

namespace ballast {

// How the scale of an fp8 weight [out, in] is spread over it: weight = float(stored) * scale.
enum class ScaleLayout {
  none,    // stored as it is
  tensor,  // one number
  row,     // [out, 1]: one per output
  group,   // [out, groups, 1]: one per in / groups consecutive inputs
};

// A tensor of a model and what belongs to it.
struct NamedTensor {
  std::string_view name;  // without the prefix of the file; lives as long as the checkpoint
  WeightTensor tensor;
  ScaleLayout layout = ScaleLayout::none;
  std::optional<WeightTensor> scale;        // f32, f16 or bf16; absent with ScaleLayout::none
  std::optional<WeightTensor> input_scale;  // of activations; no part in the weight's value
};

// The tensors of a checkpoint as the model means them: the ComfyUI prefix is taken off, and the
// companions of fp8 weights (X.scale_weight or X.weight_scale, X.scale_input or X.input_scale,
// X.comfy_quant, the marker scaled_fp8, the metadata entry _quantization_metadata) are attached to
// X.weight instead of being listed.
//
// An fp8 weight with a scale beside it is scaled, whatever the markers say. Refused with
// ErrorCode::input and the tensor's name: quant.format (a format other than float8_e4m3fn and
// float8_e5m2, or not that of the weight), quant.json, quant.scale (a scale of a strange shape or
// type, two of them, none where one is promised, or one beside a weight that is not fp8),
// quant.prefix (two prefixes).
struct TensorNames {
  std::string prefix;                     // "", "diffusion_model." or "model.diffusion_model."
  bool comfy = false;                     // a prefix, a marker or a scale was seen
  std::vector<NamedTensor> tensors;       // by file, then offset
  std::vector<std::string_view> outside;  // of a prefixed file: names without the prefix
};

TensorNames read_tensor_names(const WeightFiles& checkpoint);

}  // namespace ballast
