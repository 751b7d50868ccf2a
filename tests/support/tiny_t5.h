#pragma once

// Small random text models and their checkpoint files.

#include <cmath>
#include <string>
#include <vector>

#include "core/random.h"
#include "core/to_size.h"
#include "models/t5/params.h"
#include "models/t5/weights.h"
#include "tests/support/tensor_file.h"

namespace ballast::support {

inline t5::Config tiny_t5() {
  t5::Config c;
  c.name = "tiny";
  c.d_model = 32;
  c.d_kv = 8;
  c.d_ff = 48;
  c.heads = 3;  // an inner width that is not d_model
  c.layers = 3;
  c.decoder_layers = 2;
  c.vocabulary = 50;
  return c;
}
inline t5::Config tiny_umt5_encoder() {
  t5::Config c = tiny_t5();
  c.decoder_layers = 0;
  c.bias_per_block = true;
  return c;
}

inline std::vector<float> t5_values(const std::string& name, const Shape& shape) {
  std::vector<float> v(to_size(shape.elements()));
  fill_normal(random_source(5, "tiny_t5", 0, name), 0, v.data(), shape.elements());
  const bool gain = shape.rank() == 1;
  const double scale = gain                            ? 0.2
                       : name.ends_with("bias.weight") ? 1.0
                       : name == t5::kEmbeddingName    ? 1.0
                                                    : 1 / std::sqrt(static_cast<double>(shape[1]));
  for (float& x : v) x = static_cast<float>((gain ? 1 : 0) + scale * x);
  return v;
}

// visit(name, shape) for everything a checkpoint of the model holds.
template <class Visit>
void each_stored(const t5::Config& c, Visit&& visit) {
  if (c.decoder_layers == 0) {
    visit(std::string(t5::kEmbeddingName), Shape{c.vocabulary, c.d_model});
  }
  t5::each_parameter(c,
                     [&](int, const std::string& name, const Shape& shape) { visit(name, shape); });
}

// A checkpoint with a random tensor under every name; `rename` gives the names in the file. fp8:
// matrices of blocks with one scale each, the rest bf16, as ComfyUI's scaled files are.
template <class Rename>
std::string write_t5(const test::TempDir& dir, const t5::Config& c, DType stored, Rename&& rename) {
  TensorFile file;
  each_stored(c, [&](const std::string& name, const Shape& shape) {
    std::vector<float> values = t5_values(name, shape);
    const bool fp8 = stored == DType::f8_e4m3;
    const bool scaled = fp8 && shape.rank() == 2 && !name.ends_with("bias.weight") &&
                        name.find(".block.") != std::string::npos;
    const std::string as = rename(name);
    if (scaled) {
      const float scale = 0.01f;
      for (float& v : values) v /= scale;
      file.add(as.substr(0, as.size() - 6) + "scale_weight", DType::f32, Shape{},
               std::vector<float>{scale});
    }
    file.add(as, scaled || !fp8 ? stored : DType::bf16, shape, values);
  });
  return file.write(dir, "t5.safetensors");
}
inline std::string write_t5(const test::TempDir& dir, const t5::Config& c,
                            DType stored = DType::f32) {
  return write_t5(dir, c, stored, [](const std::string& name) { return name; });
}

// Token ids that look like nothing in particular.
inline std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t vocabulary,
                                             std::uint32_t seed = 1) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids.push_back(static_cast<std::int32_t>((seed >> 8) % static_cast<std::uint32_t>(vocabulary)));
  }
  return ids;
}

}  // namespace ballast::support
