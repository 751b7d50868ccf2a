#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/vae_statistics.h"

namespace ballast::wan_vae {

enum class Generation : std::uint8_t { wan21, wan22 };
enum class Part : std::uint8_t { encoder, decoder };

// The causal video autoencoders of the Wan family. Wan2.1: 16 latent channels, 8 x 8 pixels for a
// latent position. Wan2.2: 48 channels, 16 x 16 pixels, of which 2 x 2 are folded into channels.
// Four frames of pixels for one of latents, but one for the first.
struct Config {
  std::string name;
  Generation generation = Generation::wan21;
  std::int64_t encoder_dim =
      96;  // width of the first encoder stage; others are 1, 2, 4, 4 times it
  std::int64_t decoder_dim = 96;
  std::int64_t z_dim = 16;
  // Of its latents, by channel, where the file or its config.json says so; empty: see
  // latent_statistics().
  std::vector<float> latent_mean = {}, latent_std = {};

  bool folded() const { return generation == Generation::wan22; }
  std::int64_t pixel_fold() const { return folded() ? 2 : 1; }
  std::int64_t network_channels() const { return 3 * pixel_fold() * pixel_fold(); }
  std::int64_t pixels_per_latent() const { return 8 * pixel_fold(); }

  friend bool operator==(const Config&, const Config&) = default;
};

std::span<const Config> presets();  // wan2.1-vae, wan2.2-vae
// Names the field that contradicts another; ErrorCode::input.
void validate(const Config& c);

// The file's own numbers, else those of the released models; empty where a VAE has another number
// of channels: latents stay as they are. Refers to the config.
LatentStatistics latent_statistics(const Config& c);

// Frames of latents for so many of pixels; ErrorCode::input where they are not 4 n + 1.
std::int64_t latent_frames(std::int64_t pixel_frames);
constexpr std::int64_t pixel_frames(std::int64_t latent_frames) { return 4 * latent_frames - 3; }

}  // namespace ballast::wan_vae
