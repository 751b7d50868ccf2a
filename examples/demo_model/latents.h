#pragma once

#include <string>
#include <vector>

namespace ballast::demo {

// The latents of a VAE of one's own have a size of their own, while Wan normalises with fixed
// numbers and its transformer wants zero means and unit deviations, channel by channel. This writes
// a copy of a VAE that has them on the clips of a cache it has made: the last layer of its encoder
// and the first of its decoder, which both act on single positions, take up the difference. What it
// decodes stays the same. Official names; `bf16`: the copy is rounded to it.
void write_centred_vae(const std::string& vae, const std::string& cache, const std::string& output,
                       bool bf16);

// A latent that `ballast sample` wrote, with what it was made for.
struct SampledLatent {
  std::string prompt;
  std::vector<float> values = {};
};
SampledLatent read_sampled_latent(const std::string& path);
// Fails where sizes differ.
double mean_squared_distance(const std::vector<float>& a, const std::vector<float>& b);
// Fails where `of` is not one or more sets of as many files as `from` has.
void check_sets(const std::vector<std::string>& from, const std::vector<std::string>& of);

// Mean squared distance of latents, clip by clip.
struct Distance {
  std::string first;  // file of the set
  std::size_t clips = 0;
  double mean = 0, least = 0, most = 0;
};
// Of every set of as many files as `from` has; files are `ballast sample`'s, in the same order.
std::vector<Distance> distances(const std::vector<std::string>& from,
                                const std::vector<std::string>& of);

}  // namespace ballast::demo
