#pragma once

#include <string>

namespace ballast::demo {

// The latents of a VAE of one's own have a size of their own, while Wan normalises with fixed
// numbers and its transformer wants zero means and unit deviations, channel by channel. This writes
// a copy of a VAE that has them on the clips of a cache it has made: the last layer of its encoder
// and the first of its decoder, which both act on single positions, take up the difference. What it
// decodes stays the same. Official names; `bf16`: the copy is rounded to it.
void write_centred_vae(const std::string& vae, const std::string& cache, const std::string& output,
                       bool bf16);

}  // namespace ballast::demo
