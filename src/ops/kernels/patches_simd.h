#pragma once

// The vector part of patches.h, for kernel sources (_cpu.cpp) alone.

#include "ops/kernels/elementwise.h"
#include "ops/kernels/patches.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::Storage;

// Calls f(latent_offset, row, tokens) for runs of tokens that lie in one row of the token grid: the
// offset is that of x[0, f, 2h, 2w] of the run's first token, row its row in the token matrix.
template <class F>
inline void each_run(ThreadPool& pool, const ConstTensorView& latent, std::int64_t first_token,
                     std::int64_t tokens, F&& f) {
  const std::int64_t grid_h = latent.shape[2] / 2, grid_w = latent.shape[3] / 2;
  if (tokens == 0) return;
  const std::int64_t last = first_token + tokens, first_run = first_token / grid_w;
  pool.parallel((last - 1) / grid_w - first_run + 1, [&](std::int64_t task, int) {
    const std::int64_t run = first_run + task;  // f * H/2 + h
    const std::int64_t run_begin = run * grid_w, run_end = run_begin + grid_w;
    const std::int64_t begin = run_begin < first_token ? first_token : run_begin;
    const std::int64_t end = run_end < last ? run_end : last;
    f(run / grid_h * latent.strides[1] + run % grid_h * 2 * latent.strides[2] +
          (begin - run_begin) * 2,
      begin - first_token, end - begin);
  });
}

// rows[l, column(c, i, j)] = latent[c, f, 2h+i, 2w+j]
template <DType T>
inline void latent_to_rows(const ConstTensorView& latent, const TensorView& rows,
                           const PatchRows& at, ThreadPool& pool) {
  const auto* x = reinterpret_cast<const float*>(latent.data);
  auto* y = reinterpret_cast<Element<T>*>(rows.data);
  const std::int64_t channels = latent.shape[0], step = rows.strides[0], p = at.place_step;
  const std::int64_t below = latent.strides[2];
  each_run(pool, latent, at.first_token, rows.shape[0],
           [=](std::int64_t offset, std::int64_t row, std::int64_t tokens) {
             for (std::int64_t c = 0; c < channels; ++c) {
               const float* from = x + c * latent.strides[0] + offset;
               Element<T>* to = y + row * step + c * at.channel_step;
               each_vector(0, 2 * tokens, [=](std::int64_t i, std::int64_t n) {
                 const Storage<T> top = simd::BALLAST_ISA::narrow<T>(read<DType::f32>(from + i, n));
                 const Storage<T> bottom =
                     simd::BALLAST_ISA::narrow<T>(read<DType::f32>(from + below + i, n));
                 for (std::int64_t k = 0; k < n; k += 2) {
                   Element<T>* token = to + (i + k) / 2 * step;
                   token[0] = top[k];
                   token[p] = top[k + 1];
                   token[2 * p] = bottom[k];
                   token[3 * p] = bottom[k + 1];
                 }
               });
             }
           });
}

// latent[c, f, 2h+i, 2w+j] = rows[l, column(c, i, j)]
template <DType T>
inline void rows_to_latent(const ConstTensorView& rows, const TensorView& latent,
                           const PatchRows& at, ThreadPool& pool) {
  const auto* y = reinterpret_cast<const Element<T>*>(rows.data);
  auto* x = reinterpret_cast<float*>(latent.data);
  const std::int64_t channels = latent.shape[0], step = rows.strides[0], p = at.place_step;
  const std::int64_t below = latent.strides[2], next_channel = latent.strides[0];
  each_run(pool, latent, at.first_token, rows.shape[0],
           [=](std::int64_t offset, std::int64_t row, std::int64_t tokens) {
             for (std::int64_t c = 0; c < channels; ++c) {
               const Element<T>* from = y + row * step + c * at.channel_step;
               float* to = x + c * next_channel + offset;
               each_vector(0, 2 * tokens, [=](std::int64_t i, std::int64_t n) {
                 Storage<T> top = {}, bottom = {};
                 for (std::int64_t k = 0; k < n; k += 2) {
                   const Element<T>* token = from + (i + k) / 2 * step;
                   top[k] = token[0];
                   top[k + 1] = token[p];
                   bottom[k] = token[2 * p];
                   bottom[k + 1] = token[3 * p];
                 }
                 write<DType::f32>(to + i, simd::BALLAST_ISA::widen<T>(top), n);
                 write<DType::f32>(to + below + i, simd::BALLAST_ISA::widen<T>(bottom), n);
               });
             }
           });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
