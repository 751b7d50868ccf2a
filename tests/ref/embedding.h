#pragma once

#include <cstdint>
#include <vector>

namespace ballast::ref {

// dtable of a table [V, C] whose rows `ids` were taken and got the gradients dy.
inline std::vector<double> embedding_backward(std::int64_t vocabulary, std::int64_t width,
                                              const std::vector<std::int32_t>& ids,
                                              const std::vector<double>& dy) {
  std::vector<double> dtable(static_cast<std::size_t>(vocabulary * width));
  for (std::size_t r = 0; r < ids.size(); ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      dtable[static_cast<std::size_t>(ids[r] * width + c)] +=
          dy[r * static_cast<std::size_t>(width) + static_cast<std::size_t>(c)];
    }
  }
  return dtable;
}

}  // namespace ballast::ref
