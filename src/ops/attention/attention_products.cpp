#include "ops/attention/attention_products.h"

#include "ops/linear/linear_scratch.h"

namespace ballast::ops::cuda {

ScoreOffsets score_offsets(const Shape& q, std::int64_t keys, DType dtype, bool backward) {
  ScoreOffsets p;
  p.stride = (keys + 7) / 8 * 8;
  const std::int64_t scores = q[0] * q[1] * p.stride;
  std::int64_t end = kLibraryWorkspace;
  const auto take = [&](std::int64_t size) {
    const std::int64_t at = end;
    end += (scores * size + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    return at;
  };
  p.s = p.p = take(4);
  if (backward) p.dp = p.ds = take(4);
  if (dtype != DType::f32) {
    p.p = take(2);
    if (backward) p.ds = take(2);
  }
  p.bytes = end;
  return p;
}

}  // namespace ballast::ops::cuda
