// cuDNN is not emulated: a frame of a convolution is computed by plain loops.

#include <cstring>
#include <vector>

#include "core/convert.h"
#include "core/to_size.h"
#include "emulated_recording.h"
#include "ops/conv3d/conv3d_cuda.h"

namespace ballast::ops::cuda {
namespace {

std::vector<float> widened(const void* bf16, std::int64_t count) {
  std::vector<float> v(to_size(count));
  convert(static_cast<const std::byte*>(bf16), DType::bf16, v.data(), DType::f32, count);
  return v;
}

}  // namespace

void convolve(const ConvFrame& a, GpuQueue& queue, bool prepare) {
  if (prepare || ::emulated::noted([a, &queue] { convolve(a, queue, false); })) return;
  const std::int64_t c = a.channels, n = a.outputs, h = a.height, w = a.width;
  const std::vector<float> x = widened(a.x, 3 * h * w * c), weight = widened(a.w, n * 27 * c);
  const std::vector<float> bias = widened(a.bias, n);
  std::vector<float> y(to_size(h * w * n));
  for (std::int64_t p = 0; p < h * w; ++p) {
    for (std::int64_t o = 0; o < n; ++o) {
      float sum = 0;
      for (std::int64_t tap = 0; tap < 27; ++tap) {
        const std::int64_t r = p / w + tap / 3 % 3 - 1, q = p % w + tap % 3 - 1;
        if (r < 0 || r >= h || q < 0 || q >= w) continue;
        const float* from = x.data() + ((tap / 9 * h + r) * w + q) * c;
        const float* by = weight.data() + (o * 27 + tap) * c;
        for (std::int64_t k = 0; k < c; ++k) sum += from[k] * by[k];
      }
      y[to_size(p * n + o)] = sum + bias[to_size(o)];
    }
  }
  convert(y.data(), DType::f32, static_cast<std::byte*>(a.y), DType::bf16, h * w * n);
}

}  // namespace ballast::ops::cuda
