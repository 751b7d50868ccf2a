#pragma once

#include <string>
#include <vector>

namespace ballast::demo {

// How far samples are from others as distributions, not one by one. With |x| the root of the mean
// square over a latent's numbers,
//   2 E|x - y| - E|x - x'| - E|y - y'|
// is zero where x and y come from one distribution and positive else (the energy distance); over
// 2 E|x - y| it lies between 0 and 1. Expectations are means over pairs of different samples, so
// nothing is fitted and the number of samples brings no bias: of one distribution it is 0 on
// average.
struct Energy {
  double distance = 0;
  double variety = 0;  // E|x - x'| over E|y - y'|: below 1 samples are more alike than they should
};
// At least two samples of each, all of one size.
Energy energy_of(const std::vector<std::vector<float>>& x,
                 const std::vector<std::vector<float>>& y);

// Of every set of as many files as `from` has, which `ballast sample` wrote as latents for the same
// prompts with other noise: a mean over prompts.
struct EnergyOfSet {
  std::string first;  // file of the set
  std::size_t clips = 0, prompts = 0;
  Energy mean = {};
  double error = 0;  // of the mean distance, by how prompts differ
  // Distance less that of the first set, prompt by prompt: with the same noise in both sets most of
  // what differs between prompts drops out.
  double change = 0, change_error = 0;
};
std::vector<EnergyOfSet> energies(const std::vector<std::string>& from,
                                  const std::vector<std::string>& of);

}  // namespace ballast::demo
