#pragma once

#include <string>

#include "data/latent_cache.h"

namespace ballast::data {

// The files of other trainers' caches, as they write them, for the same samples as
// data/latent_cache.h. Each also says which media file it was made from, which they do not mind.

// What a latent file says about its source; files that say nothing are taken as they are.
inline constexpr std::string_view kSourceKey = "ballast_source";
// statistics: statistics_key() of normalised latents.
std::string source_text(const SourceStamp& source, std::string_view statistics = {});

// musubi-tuner: NAME_wan.safetensors with latents_FxHxW_dtype, and latents_image_FxHxW_dtype where
// the sample has a conditioning (the mask channels in front).
struct MusubiLatent {
  std::int64_t width = 0, height = 0;  // that the name has
  std::int64_t frames = 0;             // of the clip; 0: an image
  std::string statistics = {};         // statistics_key()
};
std::string musubi_latent_name(std::string_view stem, std::int64_t start, const MusubiLatent& size);
void write_musubi_latent(const std::string& path, const SourceStamp& source,
                         const MusubiLatent& size, const CachedLatent& latent, CacheWriting how);
void write_musubi_text(const std::string& path, const CachedText& text, CacheWriting how);

// X.latent.safetensors with the latent as the VAE gives it: not normalised, `by` is taken off. And
// X.safetensors with `embeddings` [text_len, dim], zero behind the caption.
void write_pair_latent(const std::string& path, const SourceStamp& source,
                       const CachedLatent& latent, const LatentStatistics& by, CacheWriting how);
void write_pair_text(const std::string& path, const CachedText& text, std::int64_t text_len,
                     CacheWriting how);

}  // namespace ballast::data
