// A Wan VAE: a line of bytes that fill its tensors, then tensors and metadata line by line
// (fuzz.h).

#include <cmath>

#include "fuzz.h"
#include "models/wan_vae/recognise.h"

namespace ballast::fuzz {

void one_input(Input input) {
  static MemoryFile stored("vae.safetensors");
  const std::string_view fill = input.line();
  stored.write(safetensors_of_lines(input.rest(), fill));
  accepts([&] {
    const WeightFiles checkpoint = WeightFiles::open(stored.path(), DiskMode::buffered);
    const auto found = wan_vae::recognise(checkpoint);
    if (!found) return;
    const wan_vae::Config& c = found->config;
    require(c.encoder_dim > 0 && c.decoder_dim > 0 && c.z_dim > 0);
    require(c.latent_mean.size() == c.latent_std.size());
    for (const float std : c.latent_std) require(std::isnormal(std) && std > 0);
  });
}

}  // namespace ballast::fuzz
