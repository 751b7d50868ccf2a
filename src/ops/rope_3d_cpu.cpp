#include <cmath>
#include <utility>

#include "core/to_size.h"
#include "ops/kernels/row_simd.h"
#include "ops/rope_3d.h"

namespace ballast::ops::cpu::BALLAST_ISA {

namespace v = simd::BALLAST_ISA;
using v::f32v;

namespace {

template <int... I>
f32v even_twice(f32v x, std::integer_sequence<int, I...>) {  // a b c d -> a a c c
  return __builtin_shufflevector(x, x, (I & ~1)...);
}
template <int... I>
f32v odd_twice(f32v x, std::integer_sequence<int, I...>) {  // a b c d -> b b d d
  return __builtin_shufflevector(x, x, (I | 1)...);
}
template <int... I>
f32v swapped(f32v x, std::integer_sequence<int, I...>) {  // a b c d -> b a d c
  return __builtin_shufflevector(x, x, (I ^ 1)...);
}
constexpr auto kLaneNumbers = std::make_integer_sequence<int, v::kLanes>();

}  // namespace

// y = x * (cos, cos) + (x with each pair swapped) * (-sin, sin). The two factors are spread once
// per token and serve all heads.
void rope_3d(const Rope3d& a, ThreadPool& pool) {
  const std::int64_t heads = a.x.shape[1], width = a.x.shape[2];
  const std::int64_t x_size = a.x.dtype == DType::f32 ? 4 : 2,
                     y_size = a.y.dtype == DType::f32 ? 4 : 2;
  const std::int64_t x_step = a.x.strides[1] * x_size, y_step = a.y.strides[1] * y_size;
  f32v sign;
  for (int i = 0; i < v::kLanes; ++i) sign[i] = (i % 2 == 0) != a.inverse ? -1.0f : 1.0f;

  v::each_row(pool, 0, a.x.shape[0], heads * width, [&](std::int64_t token) {
    const v::InRow x = v::in_row(a.x, token), cos_sin = v::in_row(a.table, token);
    const v::OutRow y = v::out_row(a.y, token);
    float tcos_sin[v::kChunk], tcos[v::kChunk], tsin[v::kChunk], tx[v::kChunk], ty[v::kChunk];
    v::each_chunk(width, [&](std::int64_t c, std::int64_t n) {
      const float* pcos_sin = v::fetch(cos_sin, c, n, tcos_sin);
      for (std::int64_t i = 0; i < n; i += v::kLanes) {
        const f32v t = v::load(pcos_sin + i);
        v::store(tcos + i, even_twice(t, kLaneNumbers));
        v::store(tsin + i, odd_twice(t, kLaneNumbers) * sign);
      }
      for (std::int64_t h = 0; h < heads; ++h) {
        const v::OutRow yh = {y.data + h * y_step, y.dtype};
        const float* px = v::fetch({x.data + h * x_step, x.dtype}, c, n, tx);
        float* py = v::target(yh, c, n, ty);
        for (std::int64_t i = 0; i < n; i += v::kLanes) {
          const f32v e = v::load(px + i);
          v::store(py + i, e * v::load(tcos + i) + swapped(e, kLaneNumbers) * v::load(tsin + i));
        }
        v::put(py, yh, c, n);
      }
    });
  });
}

namespace {

constexpr std::int64_t kTokensPerTask = 2048;

// The (cos, sin) pairs of one axis at one position.
void rotate_axis(std::int64_t position, std::int64_t pairs, float* out) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double exponent = static_cast<double>(i) / static_cast<double>(pairs);
    const double angle = static_cast<double>(position) / ::pow(10000.0, exponent);
    out[2 * i] = static_cast<float>(::cos(angle));
    out[2 * i + 1] = static_cast<float>(::sin(angle));
  }
}

}  // namespace

// Neighbouring tokens share two of three positions, so most of a row is copied from an earlier row
// of the same task: frame and row from the token before, column from the grid row before.
void rope_3d_table(const Rope3dTable& a, ThreadPool& pool) {
  const std::int64_t tokens = a.table.shape[0], pairs = a.table.shape[1];
  const std::int64_t row_step = a.table.strides[0];
  const std::int64_t minor = pairs / 3, major = pairs - 2 * minor;
  const std::int64_t rows = a.grid[1], columns = a.grid[2];
  auto* table = reinterpret_cast<float*>(a.table.data);
  const auto axis = [](float* out, const float* same, std::int64_t position, std::int64_t n) {
    if (same) {
      std::memcpy(out, same, to_size(2 * n) * sizeof(float));
    } else {
      rotate_axis(position, n, out);
    }
  };
  pool.parallel((tokens + kTokensPerTask - 1) / kTokensPerTask, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kTokensPerTask;
    for (std::int64_t l = begin; l < v::least(tokens, begin + kTokensPerTask); ++l) {
      const std::int64_t token = a.first_token + l;
      const std::int64_t column = token % columns, row = token / columns % rows;
      float* out = table + l * row_step;
      const float* before = l > begin ? out - row_step : nullptr;
      const float* above = l - columns >= begin ? out - columns * row_step : nullptr;
      const bool new_row = column == 0, new_frame = new_row && row == 0;
      axis(out, new_frame ? nullptr : before, token / columns / rows, major);
      out += 2 * major;
      axis(out, new_row || !before ? nullptr : before + 2 * major, row, minor);
      out += 2 * minor;
      axis(out, above ? above + 2 * (major + minor) : nullptr, column, minor);
    }
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
