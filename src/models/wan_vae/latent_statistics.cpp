#include "models/wan_vae/latent_statistics.h"

#include <algorithm>

namespace ballast::wan_vae {

VaeStatistics read_own_statistics(const std::string& config_json, std::int64_t channels) {
  const VaeStatistics found = read_vae_statistics(config_json, channels);
  const auto equals = [&](const auto& mean, const auto& std) {
    return std::ranges::equal(found.mean, mean) && std::ranges::equal(found.std, std);
  };
  const bool released =
      equals(kWan21LatentMean, kWan21LatentStd) || equals(kWan22LatentMean, kWan22LatentStd);
  return released ? VaeStatistics{} : found;
}

}  // namespace ballast::wan_vae
