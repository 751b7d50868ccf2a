#pragma once

#include <cstdint>

#include "core/shape.h"

namespace ballast::ops {

// Two operands of one shape, each with its own strides, as few dimensions as possible: dimensions
// of one element are gone and neighbours that continue each other in both operands are one. The
// last dimension is the fastest. Plain arrays, since vector kernels read it.
struct StridedWalk {
  int rank = 0;  // at least 1
  std::int64_t shape[Shape::kMaxRank] = {};
  std::int64_t from[Shape::kMaxRank] = {};  // strides in elements
  std::int64_t to[Shape::kMaxRank] = {};
  std::int64_t elements = 0;
};

StridedWalk walk_of(const Shape& shape, const Shape& from_strides, const Shape& to_strides);

// Calls f(from, to, n) for the runs of the last dimension that hold elements [begin, end) of the
// row- major order; from and to are offsets in elements.
template <class F>
void each_run(const StridedWalk& w, std::int64_t begin, std::int64_t end, F&& f) {
  const int last = w.rank - 1;
  std::int64_t at[Shape::kMaxRank];
  std::int64_t from = 0, to = 0;
  for (std::int64_t rest = begin, i = last; i >= 0; --i) {
    at[i] = rest % w.shape[i];
    rest /= w.shape[i];
    from += at[i] * w.from[i];
    to += at[i] * w.to[i];
  }
  while (begin < end) {
    const std::int64_t left = w.shape[last] - at[last];
    const std::int64_t n = end - begin < left ? end - begin : left;
    f(from, to, n);
    begin += n;
    from += n * w.from[last];
    to += n * w.to[last];
    at[last] += n;
    for (int i = last; i > 0 && at[i] == w.shape[i]; --i) {
      from += w.from[i - 1] - at[i] * w.from[i];
      to += w.to[i - 1] - at[i] * w.to[i];
      at[i] = 0;
      ++at[i - 1];
    }
  }
}

}  // namespace ballast::ops
