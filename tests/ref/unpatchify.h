#pragma once

#include "tests/ref/patchify.h"

namespace ballast::ref {

// All tokens of a latent: y [L, 4C], column place*C + c, to v [C, F, H, W].
inline std::vector<double> unpatchify(const LatentSize& s, const std::vector<double>& y) {
  std::vector<double> v(y.size());
  each_patch_element(s, [&](std::int64_t at, std::int64_t token, std::int64_t c, std::int64_t p) {
    v[static_cast<std::size_t>(at)] =
        y[static_cast<std::size_t>(token * 4 * s.channels + p * s.channels + c)];
  });
  return v;
}

inline std::vector<double> unpatchify_backward(const LatentSize& s, const std::vector<double>& dv) {
  std::vector<double> dy(dv.size());
  each_patch_element(s, [&](std::int64_t at, std::int64_t token, std::int64_t c, std::int64_t p) {
    dy[static_cast<std::size_t>(token * 4 * s.channels + p * s.channels + c)] =
        dv[static_cast<std::size_t>(at)];
  });
  return dy;
}

}  // namespace ballast::ref
