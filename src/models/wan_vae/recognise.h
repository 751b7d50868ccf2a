#pragma once

#include <cstdint>
#include <optional>

#include "io/weight_files.h"
#include "models/wan_vae/config.h"

namespace ballast::wan_vae {

enum class Dialect : std::uint8_t { official, diffusers };

struct Recognised {
  Config config;
  Dialect dialect;
};
// Where a file's metadata have its latents' statistics, as JSON lists of numbers.
inline constexpr const char *kLatentMeanKey = "latents_mean", *kLatentStdKey = "latents_std";

// Which VAE a checkpoint holds, by names and shapes; nullopt: none of these. Its latents'
// statistics are those of its config.json (models/wan_vae/latent_statistics.h), else of the file's
// metadata.
std::optional<Recognised> recognise(const WeightFiles& checkpoint);

}  // namespace ballast::wan_vae
