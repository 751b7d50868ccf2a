#pragma once

// A whole training run in a temporary folder: a small random model, cached clips, configurations.

#include <string>
#include <vector>

#include "data/latent_cache.h"
#include "tests/support/tiny_dit.h"

namespace ballast::support {

// Small, but of released proportions as far as files must tell them: heads 128 wide, 512 text rows.
inline wan::Config trainable_config(std::int64_t layers = 2, std::int64_t conditioning = 0) {
  return {.name = "trainable",
          .description = "",
          .dim = 128,
          .ffn_dim = 160,
          .heads = 1,
          .layers = layers,
          .in_dim = 4 + conditioning,
          .out_dim = 4,
          .freq_dim = 32,
          .text_dim = 8,
          .text_len = 512};
}

// One that also takes an image, as its first frame.
inline wan::Config trainable_ti2v() {
  wan::Config c = trainable_config(1);
  c.in_dim = c.out_dim = 48;
  c.spatial_stride = 16;
  return c;
}

class TinyTraining {
 public:
  explicit TinyTraining(wan::Config config = trainable_config(), DType stored = DType::f32)
      : config_(std::move(config)), model_(config_, stored) {}

  // Clips whose content depends on the name alone.
  void add_clips(int count, const data::LatentShape& shape, const std::string& prefix = "clip",
                 const std::string& folder = "clips") {
    for (int i = 0; i < count; ++i) {
      const std::string id = prefix + std::to_string(i);
      const std::vector<float> latent = normal_values(id, shape.elements(), 1);
      const std::vector<float> text = normal_values(id + ".text", 3 * config_.text_dim, 1);
      data::CachedLatent sample = {.shape = shape, .latent = latent};
      const std::vector<float> y =
          normal_values(id + ".y", shape.elements() / shape.channels * config_.conditioning(), 1);
      if (config_.conditioning() > 0) {
        sample.conditioning_channels = config_.conditioning();
        sample.conditioning = y;
      }
      data::write_cached_sample(
          dir_.path(folder), id, sample,
          {.tokens = 3, .dim = config_.text_dim, .rows = text, .caption = "a clip called " + id},
          {.durability = Durability::process});
    }
  }

  // A diffusion-pipe configuration; `extra` goes to the top level, tables last.
  std::string write_config(const std::string& extra = "epochs = 1",
                           const std::string& tables =
                               "[adapter]\ntype = 'lora'\nrank = 4\ndtype = 'float32'\n"
                               "[optimizer]\ntype = 'adamw'\nlr = 1e-3\n",
                           const std::string& name = "run.toml") {
    return dir_.write(
        name, fmt::format("output_dir = '{}'\ndataset = '{}'\n{}\n"
                          "[model]\ntype = 'wan'\nckpt_path = '{}'\n"
                          "dtype = 'float32'\n{}",
                          dir_.path("out"), dir_.path("clips"), extra, model_path(), tables));
  }

  const wan::Config& config() const { return config_; }
  std::string model_path() const { return other_model_.empty() ? model_.path() : other_model_; }
  void use_model(const std::string& path) { other_model_ = path; }
  std::string path(const std::string& name) const { return dir_.path(name); }

 private:
  wan::Config config_;
  TinyCheckpoint model_;
  std::string other_model_;
  test::TempDir dir_;
};

}  // namespace ballast::support
