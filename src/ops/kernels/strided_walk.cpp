#include "ops/kernels/strided_walk.h"

#include "core/error.h"

namespace ballast::ops {

StridedWalk walk_of(const Shape& shape, const Shape& from_strides, const Shape& to_strides) {
  check(from_strides.rank() == shape.rank() && to_strides.rank() == shape.rank(),
        "{} with strides {} and {}", shape, from_strides, to_strides);
  StridedWalk w;
  w.elements = shape.elements();
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 1) continue;
    const int p = w.rank - 1;  // the dimension before
    if (p >= 0 && w.from[p] == shape[i] * from_strides[i] && w.to[p] == shape[i] * to_strides[i]) {
      w.shape[p] *= shape[i];
      w.from[p] = from_strides[i];
      w.to[p] = to_strides[i];
    } else {
      w.shape[w.rank] = shape[i];
      w.from[w.rank] = from_strides[i];
      w.to[w.rank] = to_strides[i];
      ++w.rank;
    }
  }
  if (w.rank == 0) {  // one element
    w.rank = 1;
    w.shape[0] = w.from[0] = w.to[0] = 1;
  }
  return w;
}

}  // namespace ballast::ops
