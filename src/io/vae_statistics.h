#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ballast {

// What a diffusers VAE normalises its latents with, by channel, from its config.json.
struct VaeStatistics {
  std::vector<float> mean = {}, std = {};

  bool empty() const { return mean.empty(); }
  friend bool operator==(const VaeStatistics&, const VaeStatistics&) = default;
};

// The config.json that describes a VAE: the one in the folder, or beside a file that diffusers
// named (diffusion_pytorch_model*). "": there is none.
std::string vae_config_json(const std::string& vae);

// Its latents_mean and latents_std. Empty where the file has neither, and where they are the
// released model's own numbers (io/wan_latent_statistics.h): then nothing differs. Fails with
// ErrorCode::input, naming file and key, where only one is there, where their number is not
// `channels`, where one is no finite number, or a std is not positive.
VaeStatistics read_vae_statistics(const std::string& config_json, std::int64_t channels);

}  // namespace ballast
