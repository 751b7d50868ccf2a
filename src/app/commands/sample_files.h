#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "models/wan/config.h"

namespace ballast {

// Text states of a caption, [rows, text_dim]: the tensor `embeddings`, or `text` of one of our
// caches, or varlen_t5_* of a musubi cache.
std::vector<float> read_text_states(const std::string& path, const wan::Config& model);

// A latent, normalised, with its size: the tensor `latent`, [channels, f, h, w].
struct StoredLatent {
  std::vector<float> values;
  wan::LatentSize size;
};
StoredLatent read_latent(const std::string& path, std::int64_t channels);

// The tensor `latent` as f32, with words about how it was made.
void write_latent(const std::string& path, std::span<const float> values, std::int64_t channels,
                  const wan::LatentSize& size, Metadata metadata);

// "clip.latent.safetensors", of several "clip-2.latent.safetensors".
std::string numbered_path(const std::string& path, std::int64_t number, std::int64_t count);

}  // namespace ballast
