#pragma once

#include <string>

#include "models/t5/params.h"
#include "models/wan/config.h"
#include "tests/support/tensor_file.h"
#include "tests/support/tiny_tokenizer.h"
#include "tests/support/tiny_vae.h"

namespace ballast::support {

// What stands around a small transformer: vae.safetensors, t5.safetensors and tokenizer/, all of
// random numbers.
inline void write_parts(const test::TempDir& dir, const wan::Config& model) {
  wan_vae::Config vae = tiny_vae(model.spatial_stride == 16 ? wan_vae::Generation::wan22
                                                            : wan_vae::Generation::wan21);
  vae.z_dim = model.out_dim;
  write_vae(dir.path("vae.safetensors"), vae, wan_vae::Dialect::official);
  t5::Config c;
  c.name = "tiny";
  c.d_model = model.text_dim;
  c.d_kv = 8;
  c.d_ff = 16;
  c.heads = 2;
  c.layers = 2;
  c.vocabulary = 16;
  c.bias_per_block = true;
  TensorFile file;
  std::uint64_t seed = 0;
  const auto add = [&](const std::string& name, const Shape& shape) {
    file.add(name, DType::f32, shape, ++seed, 0.3);
  };
  add(t5::kEmbeddingName, {c.vocabulary, c.d_model});
  t5::each_parameter(c, [&](int, const std::string& name, const Shape& shape) {
    if (name != t5::kEmbeddingName) add(name, shape);
  });
  file.write(dir, "t5.safetensors");
  test::TestModel words{.pieces = {{"<pad>", 0, 3}, {"</s>", 0, 3}, {"<unk>", 0, 2}}};
  for (const char* piece : {"▁", "a", "b", "c", "d", "e", "▁a", "▁clip"}) {
    words.pieces.push_back({piece, -1.0f * static_cast<float>(words.pieces.size())});
  }
  dir.write("tokenizer/spiece.model", test::sentencepiece_file(words));
}

// The lines of [model] that name them.
inline std::string parts_keys(const test::TempDir& dir) {
  return fmt::format("vae_path = '{}'\nllm_path = '{}'\ntokenizer_path = '{}'\n",
                     dir.path("vae.safetensors"), dir.path("t5.safetensors"),
                     dir.path("tokenizer"));
}

}  // namespace ballast::support
