#pragma once

#include <cstdint>
#include <span>

#include "data/cache_file.h"
#include "data/dataset.h"

namespace ballast::data {

// How the files of a cached sample name their tensors.
enum class SampleLayout : std::uint8_t {
  ballast,         // latent, conditioning, mask; text
  musubi,          // latents_FxHxW_dtype, latents_image_FxHxW_dtype; varlen_t5_dtype
  embedding_pair,  // latent (as the VAE gave it: normalised when read); embeddings
};

// Where the model takes clips themselves (ModelNeeds::pixels) the latent is `pixels`, u8 [frames,
// height, width, 3].
//
// The tensors of a sample's latent file, checked against what the model needs: channels, float
// types, equal grids, sizes that patches divide. What is wrong is an Error of ErrorCode::input.
struct LatentTensors {
  LatentShape shape;
  const SafetensorsEntry* latent = nullptr;
  const SafetensorsEntry* conditioning = nullptr;  // nullptr: none wanted
  const SafetensorsEntry* mask = nullptr;          // nullptr: the sample has none
};
LatentTensors find_latent(const CacheFile& file, SampleLayout layout, const ModelNeeds& needs);

// The rows [tokens, text_dim] of a text file; at most text_len of them.
const SafetensorsEntry& find_text(const CacheFile& file, SampleLayout layout,
                                  const ModelNeeds& needs);

// Fill the planned memory of one sample. Sizes were compared before.
void read_latent(const CacheFile& file, const LatentTensors& tensors, SampleLayout layout,
                 const ModelNeeds& needs, std::span<float> to);
// Four mask channels (1 on the first latent frame, else 0) come first where the file has only the
// others. `to` is [needs.conditioning_channels, frames, height, width].
void read_conditioning(const CacheFile& file, const LatentTensors& tensors, std::span<float> to);
// [height, width] for every frame; 1 where the sample has no mask.
void read_mask(const CacheFile& file, const LatentTensors& tensors, std::span<float> to);
void read_text(const CacheFile& file, const SafetensorsEntry& rows, std::span<float> to);

}  // namespace ballast::data
