#include "examples/demo_model/first_model.h"

#include <cmath>
#include <deque>
#include <filesystem>
#include <span>
#include <vector>

#include "core/convert.h"
#include "core/random.h"
#include "examples/demo_model/clips.h"
#include "io/atomic_file.h"
#include "io/json_writer.h"
#include "io/safetensors_writer.h"
#include "models/t5/params.h"
#include "models/wan/params.h"
#include "models/wan_vae/layers.h"

namespace ballast::demo {
namespace {

constexpr std::int64_t kTextDim = 128;

// Tensors of one file, of normally distributed values.
class RandomFile {
 public:
  RandomFile(std::uint64_t seed, const char* part, DType dtype)
      : seed_(seed), part_(part), dtype_(dtype), writer_({.metadata = {{"format", "pt"}}}) {}

  void add(const std::string& name, const Shape& shape, double deviation, double mean = 0) {
    const std::int64_t n = shape.elements();
    std::vector<float> values(static_cast<std::size_t>(n));
    fill_normal(random_source(seed_, part_, 0, name), 0, values.data(), n);
    for (float& v : values) v = static_cast<float>(mean + deviation * v);
    std::vector<std::byte>& bytes = kept_.emplace_back(values.size() * size_of(dtype_));
    convert(values.data(), DType::f32, bytes.data(), dtype_, n);
    writer_.add(name, dtype_, shape, bytes);
  }
  // A matrix that keeps the size of what it multiplies, times `gain`.
  void add_matrix(const std::string& name, const Shape& shape, double gain = 1) {
    add(name, shape, gain / std::sqrt(static_cast<double>(shape.elements() / shape[0])));
  }
  void write(const std::string& path) const { writer_.write(path, Durability::process); }

 private:
  std::uint64_t seed_;
  const char* part_;
  DType dtype_;
  std::deque<std::vector<std::byte>> kept_;  // the writer holds on to their addresses
  SafetensorsWriter writer_;
};

void write_text(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit(Durability::process);
}

// Biases are zero and so is the head: the untrained model predicts zero and learns from there.
void write_transformer(const std::string& folder, std::uint64_t seed) {
  const wan::Config c = {.name = "demo",
                         .description = "",
                         .dim = 256,
                         .ffn_dim = 384,
                         .heads = 2,  // heads are 128 wide in every released model
                         .layers = 4,
                         .in_dim = 16,
                         .out_dim = 16,
                         .text_dim = kTextDim,
                         .text_len = 32};  // rows behind a caption cost time as well
  wan::validate(c);
  RandomFile file(seed, "transformer", DType::f32);
  each_parameter(c, [&](int, const std::string& name, const Shape& shape) {
    if (name.starts_with("head.head.") || name.ends_with("bias")) {
      file.add(name, shape, 0);
    } else if (name.find("norm") != std::string::npos) {
      file.add(name, shape, 0, 1);
    } else if (name.ends_with("modulation")) {
      file.add(name, shape, 1 / std::sqrt(static_cast<double>(c.dim)));
    } else {
      file.add_matrix(name, shape);
    }
  });
  std::filesystem::create_directories(folder);
  file.write(folder + "/diffusion_pytorch_model.safetensors");
  write_text(folder + "/config.json", fmt::format("{{\"_class_name\": \"WanModel\", "
                                                  "\"text_len\": {}}}\n",
                                                  c.text_len));
}

// Residual branches begin small, so that a deep network begins as a shallow one.
void write_vae(const std::string& path, std::uint64_t seed) {
  using Slots = wan_vae::TensorSlots;
  const wan_vae::Config c = {.name = "demo", .encoder_dim = 8, .decoder_dim = 8, .z_dim = 16};
  RandomFile file(seed, "vae", DType::f32);
  for (const wan_vae::Network& net : {encoder(c), decoder(c)}) {
    for (const wan_vae::Stage& stage : net) {
      for (const wan_vae::Unit& unit : stage.units) {
        const bool branch =
            unit.kind == wan_vae::UnitKind::residual || unit.kind == wan_vae::UnitKind::attention;
        for (const wan_vae::UnitTensor& t : tensors_of(unit)) {
          if (t.taps == 0) {
            const bool gain = t.slot == Slots::norm || t.slot == Slots::norm2;
            file.add(t.name, t.shape, 0, gain ? 1 : 0);
          } else {
            file.add_matrix(t.name, t.shape, branch && t.slot == Slots::conv2 ? 0.3 : 1);
          }
        }
      }
    }
  }
  file.write(path);
}

// The size of each kind of weight in a T5 before training; residual branches a third of that, so
// that a word stays recognisable among its neighbours.
void write_encoder(const std::string& path, std::int64_t vocabulary, std::uint64_t seed) {
  const t5::Config c = {.name = "demo",
                        .description = "",
                        .d_model = kTextDim,
                        .d_kv = 64,
                        .d_ff = 256,
                        .heads = 2,
                        .layers = 2,
                        .vocabulary = vocabulary,
                        .bias_per_block = true};
  t5::validate(c);
  RandomFile file(seed, "text encoder", DType::bf16);
  file.add(t5::kEmbeddingName, {c.vocabulary, c.d_model}, 1);
  each_parameter(c, [&](int, const std::string& name, const Shape& shape) {
    if (shape.rank() == 1) return file.add(name, shape, 0, 1);
    if (name.ends_with("relative_attention_bias.weight")) return file.add(name, shape, 0.3);
    const bool query = name.ends_with(".q.weight");  // scores are not divided by sqrt(d_kv)
    const bool last = name.ends_with(".o.weight") || name.ends_with(".wo.weight");
    file.add_matrix(name, shape,
                    query  ? 1 / std::sqrt(static_cast<double>(c.d_kv))
                    : last ? 0.33
                           : 1);
  });
  file.write(path);
}

// Whole words first; letters cost more, so that they serve for unknown words alone.
std::int64_t write_tokenizer(const std::string& path) {
  constexpr const char* kSpace = "\u2581";
  std::string pieces;
  std::int64_t count = 0;
  const auto add = [&](const std::string& piece, double score) {
    pieces += count++ == 0 ? "\n      [" : ",\n      [";
    append_json_string(pieces, piece);
    pieces += fmt::format(", {:.1f}]", score);
  };
  for (const char* special : {"<pad>", "</s>", "<unk>"}) add(special, 0);
  for (const std::string_view word : words()) add(kSpace + std::string(word), -2);
  add(kSpace, -8);
  for (char c = 'a'; c <= 'z'; ++c) add(std::string(1, c), -8);
  write_text(path, fmt::format(R"({{
  "version": "1.0",
  "added_tokens": [
    {{"id": 0, "content": "<pad>", "special": true}},
    {{"id": 1, "content": "</s>", "special": true}},
    {{"id": 2, "content": "<unk>", "special": true}}
  ],
  "normalizer": {{"type": "Replace", "pattern": {{"Regex": " {{2,}}"}}, "content": " "}},
  "pre_tokenizer": {{"type": "Metaspace", "replacement": "{}", "prepend_scheme": "always"}},
  "model": {{
    "type": "Unigram",
    "unk_id": 2,
    "vocab": [{}
    ]
  }}
}}
)",
                               kSpace, pieces));
  return count;
}

}  // namespace

void write_first_model(const std::string& folder, std::uint64_t seed) {
  std::filesystem::create_directories(folder);
  const std::int64_t vocabulary = write_tokenizer(folder + "/tokenizer.json");
  write_encoder(folder + "/umt5_encoder.safetensors", vocabulary, seed);
  write_vae(folder + "/vae.safetensors", seed);
  write_transformer(folder + "/transformer", seed);
}

}  // namespace ballast::demo
