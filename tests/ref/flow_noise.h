#pragma once

#include <cstddef>
#include <vector>

namespace ballast::ref {

struct FlowNoise {
  std::vector<double> x_t, target;
};

// x_t = (1 - t) x0 + t noise, target = noise - x0
inline FlowNoise flow_noise(const std::vector<double>& x0, const std::vector<double>& noise,
                            double t) {
  FlowNoise r = {x0, noise};
  for (std::size_t i = 0; i < x0.size(); ++i) {
    r.x_t[i] = (1 - t) * x0[i] + t * noise[i];
    r.target[i] = noise[i] - x0[i];
  }
  return r;
}

}  // namespace ballast::ref
