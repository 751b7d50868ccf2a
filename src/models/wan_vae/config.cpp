#include "models/wan_vae/config.h"

#include "core/error.h"
#include "models/wan_vae/latent_statistics.h"

namespace ballast::wan_vae {

std::span<const Config> presets() {
  static const std::array<Config, 2> all = {
      Config{"wan2.1-vae", Generation::wan21, 96, 96, 16, {}, {}},
      Config{"wan2.2-vae", Generation::wan22, 160, 256, 48, {}, {}},
  };
  return all;
}

void validate(const Config& c) {
  constexpr std::int64_t kMax = 4096;
  const auto in_range = [&](const char* field, std::int64_t value) {
    if (value >= 1 && value <= kMax) return;
    fail(ErrorCode::input, "a VAE with {} = {}; 1 to {} make sense", field, value, kMax);
  };
  in_range("encoder_dim", c.encoder_dim);
  in_range("decoder_dim", c.decoder_dim);
  in_range("z_dim", c.z_dim);
}

LatentStatistics latent_statistics(const Config& c) {
  if (!c.latent_mean.empty()) return {c.latent_mean, c.latent_std};
  const LatentStatistics all = c.generation == Generation::wan21
                                   ? LatentStatistics{kWan21LatentMean, kWan21LatentStd}
                                   : LatentStatistics{kWan22LatentMean, kWan22LatentStd};
  return std::ssize(all.mean) == c.z_dim ? all : LatentStatistics{};
}

std::int64_t latent_frames(std::int64_t pixel_frames) {
  if (pixel_frames < 1 || pixel_frames % 4 != 1) {
    const std::int64_t fewer = pixel_frames < 1 ? 1 : (pixel_frames - 1) / 4 * 4 + 1;
    fail(ErrorCode::input,
         fmt::format("{} frames: the VAE takes 1, 5, 9, ... (4 n + 1) frames", pixel_frames),
         {{fmt::format("use {} frames", fewer), "the nearest number below"}});
  }
  return 1 + (pixel_frames - 1) / 4;
}

}  // namespace ballast::wan_vae
