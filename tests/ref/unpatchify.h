#pragma once

#include "core/to_size.h"
#include "tests/ref/patchify.h"

namespace ballast::ref {

// All tokens of a latent: y [L, 4C], column place*C + c, to v [C, F, H, W].
inline std::vector<double> unpatchify(const LatentSize& s, const std::vector<double>& y) {
  std::vector<double> v(y.size());
  each_patch_element(s, [&](std::int64_t at, std::int64_t token, std::int64_t c, std::int64_t p) {
    v[to_size(at)] = y[to_size(token * 4 * s.channels + p * s.channels + c)];
  });
  return v;
}

inline std::vector<double> unpatchify_backward(const LatentSize& s, const std::vector<double>& dv) {
  std::vector<double> dy(dv.size());
  each_patch_element(s, [&](std::int64_t at, std::int64_t token, std::int64_t c, std::int64_t p) {
    dy[to_size(token * 4 * s.channels + p * s.channels + c)] = dv[to_size(at)];
  });
  return dy;
}

}  // namespace ballast::ref
