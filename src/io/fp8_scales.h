#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "io/weight_files.h"

namespace ballast {

// How the scale of an fp8 weight [out, in] is spread over it: weight = float(stored) * scale.
enum class ScaleLayout {
  none,    // stored as it is
  tensor,  // one number
  row,     // [out, 1]: one per output
  group,   // [out, groups, 1]: one per in / groups consecutive inputs
};

// What a file says of one weight.
struct Fp8Scale {
  ScaleLayout layout = ScaleLayout::none;
  std::optional<WeightTensor> scale;        // f32, f16 or bf16; absent with ScaleLayout::none
  std::optional<WeightTensor> input_scale;  // of activations; no part in the weight's value
};

// The scales of fp8 weights in model files: X.scale_weight or X.weight_scale, X.scale_input or
// X.input_scale, X.comfy_quant, the marker scaled_fp8, the metadata entry _quantization_metadata.
//
// An fp8 weight with a scale beside it is scaled, whatever the markers say. Refused with
// ErrorCode::input and the tensor's name: quant.format (a format other than float8_e4m3fn and
// float8_e5m2, or not that of the weight), quant.json, quant.scale (a scale of a strange shape or
// type, two of them, none where one is promised, or one beside a weight that is not fp8).
class Fp8Scales {
 public:
  // prefix: of all names; the metadata may leave it out. Both outlive this.
  Fp8Scales(const WeightFiles& files, std::string_view prefix);

  // Whether the tensor is no weight but says something of one.
  bool describes(const WeightTensor& tensor);
  Fp8Scale scale_of(const WeightTensor& weight) const;
  // Whether there was any of it so far.
  bool seen() const { return seen_; }

 private:
  const std::string& path(const WeightTensor& t) const { return files_.file(t).path(); }
  const WeightTensor* beside(std::string_view layer, std::string_view suffix) const;
  bool is_companion(std::string_view name) const;
  void check_marker(const WeightTensor& marker) const;
  void read_metadata(const SafetensorsFile& file);
  FileDType read_note(const WeightTensor& note) const;
  std::optional<WeightTensor> companion(std::string_view layer,
                                        const std::array<std::string_view, 2>& spellings) const;
  ScaleLayout layout_of(const WeightTensor& weight, const WeightTensor& scale) const;

  const WeightFiles& files_;
  std::string_view prefix_;
  std::map<std::string_view, FileDType> formats_;  // by the full name of the weight
  bool seen_ = false;
};

// Of a tensor that breaks a rule.
[[noreturn]] void refuse_tensor(const std::string& path, std::string_view rule,
                                std::string_view tensor, std::string_view what);

}  // namespace ballast
