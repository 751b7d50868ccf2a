#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ballast {

// What latents are normalised with, channel by channel: latent = (mean of the encoder - mean) /
// std.
struct LatentStatistics {
  std::span<const float> mean = {}, std = {};
};

// What a diffusers VAE normalises its latents with, by channel, from its config.json.
struct VaeStatistics {
  std::vector<float> mean = {}, std = {};

  bool empty() const { return mean.empty(); }
  LatentStatistics view() const { return {mean, std}; }
  friend bool operator==(const VaeStatistics&, const VaeStatistics&) = default;
};

// The config.json that describes a VAE: the one in the folder, or beside a file that diffusers
// named (diffusion_pytorch_model*). "": there is none.
std::string vae_config_json(const std::string& vae);

// Its latents_mean and latents_std. Empty where the file has neither. Fails with ErrorCode::input,
// naming file and key, where only one is there, where their number is not `channels`, where one is
// no finite number, or a std is not positive.
VaeStatistics read_vae_statistics(const std::string& config_json, std::int64_t channels);

}  // namespace ballast
