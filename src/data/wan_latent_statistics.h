#pragma once

#include <span>

#include "io/vae_statistics.h"
#include "io/wan_latent_statistics.h"

namespace ballast::data {

using ballast::kWan22LatentMean;
using ballast::kWan22LatentStd;

// Between a pair's latent, which is as the VAE gave it, and what is trained on: (x - mean) / std.
struct LatentNormalisation {
  std::span<const float> mean, std;
};
// The VAE's own numbers where they are given, else those of Wan2.2. Refers to `own`.
inline LatentNormalisation pair_normalisation(const VaeStatistics& own) {
  if (own.empty()) return {kWan22LatentMean, kWan22LatentStd};
  return {own.mean, own.std};
}

}  // namespace ballast::data
