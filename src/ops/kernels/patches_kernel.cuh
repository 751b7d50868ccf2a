#pragma once

// The kernels of patches.h, for patchify and unpatchify; included by their .cu files only.

#include "ops/kernels/cuda_kernel.cuh"

namespace ballast::ops::cuda {

struct Patches {
  float* latent;
  std::int64_t channel_step, frame_step, line_step;  // of the latent
  std::int64_t grid_h, grid_w;                       // tokens down and across
  void* rows;
  std::int64_t row_step, count, channels, first_token;
  bool channel_fastest;  // column = (2i + j) C + c, else 4c + 2i + j
};

// A thread moves one element of the rows [R, 4C]; neighbours write (or read) neighbouring columns.
// The whole is a few megabytes once per step, so the scattered side does not matter.
template <class T, bool kToRows>
__global__ void move_patches(Patches a) {
  const std::int64_t width = 4 * a.channels, all = a.count * width;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < all;
       at += step) {
    const std::int64_t l = at / width, column = at % width, token = a.first_token + l;
    const std::int64_t c = a.channel_fastest ? column % a.channels : column / 4;
    const std::int64_t place = a.channel_fastest ? column / a.channels : column % 4;
    const std::int64_t w = token % a.grid_w, h = token / a.grid_w % a.grid_h;
    const std::int64_t f = token / a.grid_w / a.grid_h;
    float* x = a.latent + c * a.channel_step + f * a.frame_step +
               (2 * h + place / 2) * a.line_step + 2 * w + place % 2;
    T* y = static_cast<T*>(a.rows) + l * a.row_step + column;
    if constexpr (kToRows) {
      *y = from_float<T>(*x);
    } else {
      *x = to_float(*y);
    }
  }
}

template <bool kToRows>
void move_patches(const View& latent, const View& rows, std::int64_t first_token,
                  bool channel_fastest, cudaStream_t stream) {
  if (rows.elements() == 0) return;
  const Patches p = {static_cast<float*>(latent.data),
                     latent.strides[0],
                     latent.strides[1],
                     latent.strides[2],
                     latent.shape[2] / 2,
                     latent.shape[3] / 2,
                     rows.data,
                     rows.strides[0],
                     rows.shape[0],
                     latent.shape[0],
                     first_token,
                     channel_fastest};
  with_activation(rows.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    move_patches<T, kToRows><<<some_blocks(rows.elements(), 256), 256, 0, stream>>>(p);
  });
}

}  // namespace ballast::ops::cuda
