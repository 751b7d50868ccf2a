#pragma once

#include <cstdint>
#include <string>

#include "models/wan_vae/config.h"

namespace ballast::wan_vae {

// Writes a VAE that has learned nothing, f32 under official names: convolutions and their biases
// uniform within 1 / sqrt(inputs), as PyTorch begins, norms 1, attention's last convolution 0 so
// that it adds nothing at first. Numbers depend on the seed and each tensor's name.
void write_initial_weights(const std::string& path, const Config& config, std::uint64_t seed);

}  // namespace ballast::wan_vae
