#pragma once

#include <cstddef>
#include <vector>

namespace ballast::ref {

struct ModulationSize {
  std::size_t rows, timesteps, width;  // K, T, C
  bool shared_e = false;
  std::size_t e_row(std::size_t k, std::size_t t) const { return shared_e ? t : t * rows + k; }
  std::size_t e_elements() const { return timesteps * (shared_e ? 1 : rows) * width; }
};

// m[k, t, :] = modulation[k, :] + e[t, k, :], or e[t, :] when it is shared
inline std::vector<double> modulation_table(const ModulationSize& s,
                                            const std::vector<double>& modulation,
                                            const std::vector<double>& e) {
  std::vector<double> m;
  for (std::size_t k = 0; k < s.rows; ++k) {
    for (std::size_t t = 0; t < s.timesteps; ++t) {
      for (std::size_t c = 0; c < s.width; ++c) {
        m.push_back(modulation[k * s.width + c] + e[s.e_row(k, t) * s.width + c]);
      }
    }
  }
  return m;
}

struct ModulationTableGrads {
  std::vector<double> de, dmodulation;
};
inline ModulationTableGrads modulation_table_backward(const ModulationSize& s,
                                                      const std::vector<double>& dm) {
  ModulationTableGrads g;
  g.de.assign(s.e_elements(), 0);
  g.dmodulation.assign(s.rows * s.width, 0);
  for (std::size_t k = 0; k < s.rows; ++k) {
    for (std::size_t t = 0; t < s.timesteps; ++t) {
      for (std::size_t c = 0; c < s.width; ++c) {
        const double d = dm[(k * s.timesteps + t) * s.width + c];
        g.de[s.e_row(k, t) * s.width + c] += d;
        g.dmodulation[k * s.width + c] += d;
      }
    }
  }
  return g;
}

}  // namespace ballast::ref
