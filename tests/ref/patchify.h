#pragma once

#include <cstdint>
#include <vector>

#include "core/to_size.h"

namespace ballast::ref {

struct LatentSize {
  std::int64_t channels, frames, height, width;
  std::int64_t tokens() const { return frames * (height / 2) * (width / 2); }
  std::int64_t elements() const { return channels * frames * height * width; }
};

// Calls f(latent element, token, c, place) for every element of the latent; place is 2i + j.
template <class F>
void each_patch_element(const LatentSize& s, F&& f) {
  for (std::int64_t c = 0; c < s.channels; ++c) {
    for (std::int64_t z = 0; z < s.frames; ++z) {
      for (std::int64_t y = 0; y < s.height; ++y) {
        for (std::int64_t x = 0; x < s.width; ++x) {
          const std::int64_t token = (z * (s.height / 2) + y / 2) * (s.width / 2) + x / 2;
          f(((c * s.frames + z) * s.height + y) * s.width + x, token, c, y % 2 * 2 + x % 2);
        }
      }
    }
  }
}

// All tokens of a latent: [L, 4C], column c*4 + place.
inline std::vector<double> patchify(const LatentSize& s, const std::vector<double>& latent) {
  std::vector<double> tokens(latent.size());
  each_patch_element(s, [&](std::int64_t at, std::int64_t token, std::int64_t c, std::int64_t p) {
    tokens[to_size(token * 4 * s.channels + c * 4 + p)] = latent[to_size(at)];
  });
  return tokens;
}

inline std::vector<double> patchify_backward(const LatentSize& s,
                                             const std::vector<double>& dtokens) {
  std::vector<double> dlatent(dtokens.size());
  each_patch_element(s, [&](std::int64_t at, std::int64_t token, std::int64_t c, std::int64_t p) {
    dlatent[to_size(at)] = dtokens[to_size(token * 4 * s.channels + c * 4 + p)];
  });
  return dlatent;
}

}  // namespace ballast::ref
