#pragma once

// Calls of the linear products with a workspace of exactly the size they ask for, whole or in
// chunks of rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "core/thread_pool.h"
#include "ops/linear.h"
#include "tests/support/linear_weight.h"
#include "tests/support/sample_tensor.h"

namespace ballast::support {

inline constexpr DType kWeightTypes[] = {DType::f32,     DType::bf16,    DType::f16,
                                         DType::f8_e4m3, DType::f8_e5m2, DType::i8};

// Exactly as many bytes as asked for; NaN patterns, so that scratch read before it is written
// shows.
class Workspace {
 public:
  explicit Workspace(std::int64_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    data_.reset(new (std::align_val_t{64}) std::byte[static_cast<std::size_t>(bytes)]);
    std::memset(data_.get(), 0xff, static_cast<std::size_t>(bytes));
  }
  TensorView view() const { return {data_.get(), DType::u8, {size_}}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::int64_t size_;
  std::unique_ptr<std::byte[], Free> data_;
};

inline bool in_place(const SampleWeight& w, const ConstTensorView& scale) {
  return w.dtype() == DType::f32 && !scale &&
         reinterpret_cast<std::uintptr_t>(w.view().data) % 4 == 0;
}

// Calls in chunks of rows, each with a workspace of its exact size.
struct Chunks {
  int threads = 1;
  std::int64_t rows = 1 << 20;
};

template <class F>
void each_chunk(std::int64_t rows, const Chunks& chunks, F&& f) {
  std::int64_t begin = 0;
  do {
    const std::int64_t count = std::min(chunks.rows, rows - begin);
    f(begin, count);
    begin += count;
  } while (begin < rows);
}

struct Extra {
  ConstTensorView scale = {}, bias = {};
  float alpha = 1;
  bool accumulate = false;
};

inline void forward(const SampleTensor& x, const SampleWeight& w, const Extra& e, SampleTensor& y,
                    const Chunks& c = {}) {
  ThreadPool pool(c.threads);
  each_chunk(x.shape()[0], c, [&](std::int64_t begin, std::int64_t count) {
    const Workspace workspace(ops::linear_workspace({.rows = count,
                                                     .inputs = x.shape()[1],
                                                     .outputs = y.shape()[1],
                                                     .x = x.dtype(),
                                                     .y = y.dtype(),
                                                     .w_in_place = in_place(w, e.scale),
                                                     .threads = c.threads}));
    ops::linear({.x = x.view().rows(begin, count),
                 .w = w.view(),
                 .scale = e.scale,
                 .bias = e.bias,
                 .y = y.view().rows(begin, count),
                 .workspace = workspace.view(),
                 .alpha = e.alpha,
                 .accumulate = e.accumulate},
                {.pool = &pool});
  });
  EXPECT_TRUE(y.padding_untouched());
}

inline void backward(const SampleTensor& dy, const SampleWeight& w, const Extra& e,
                     SampleTensor& dx, const Chunks& c = {}) {
  ThreadPool pool(c.threads);
  each_chunk(dy.shape()[0], c, [&](std::int64_t begin, std::int64_t count) {
    const Workspace workspace(ops::linear_dx_workspace({.rows = count,
                                                        .inputs = dx.shape()[1],
                                                        .outputs = dy.shape()[1],
                                                        .x = dx.dtype(),
                                                        .y = dy.dtype(),
                                                        .w_in_place = in_place(w, e.scale),
                                                        .threads = c.threads}));
    ops::linear_dx({.dy = dy.view().rows(begin, count),
                    .w = w.view(),
                    .scale = e.scale,
                    .dx = dx.view().rows(begin, count),
                    .workspace = workspace.view(),
                    .alpha = e.alpha,
                    .accumulate = e.accumulate},
                   {.pool = &pool});
  });
  EXPECT_TRUE(dx.padding_untouched());
}

inline void weight_gradient(const SampleTensor& x, const SampleTensor& dy, SampleTensor& dw,
                            SampleTensor& dbias, float alpha, const Chunks& c = {}) {
  ThreadPool pool(c.threads);
  each_chunk(x.shape()[0], c, [&](std::int64_t begin, std::int64_t count) {
    const Workspace workspace(ops::linear_dw_workspace({.rows = count,
                                                        .inputs = x.shape()[1],
                                                        .outputs = dy.shape()[1],
                                                        .x = x.dtype(),
                                                        .y = dy.dtype(),
                                                        .threads = c.threads}));
    ops::linear_dw({.x = x.view().rows(begin, count),
                    .dy = dy.view().rows(begin, count),
                    .dw = dw.view(),
                    .dbias = dbias.view(),
                    .workspace = workspace.view(),
                    .alpha = alpha},
                   {.pool = &pool});
  });
  EXPECT_TRUE(dw.padding_untouched());
  EXPECT_TRUE(dbias.padding_untouched());
}

}  // namespace ballast::support
