#pragma once

// Calls of the linear products with a workspace of exactly the size they ask for, whole or in
// chunks of rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/linear/linear.h"
#include "tests/support/linear_weight.h"
#include "tests/support/sample_tensor.h"
#include "tests/support/test_device.h"

namespace ballast::support {

inline constexpr DType kWeightTypes[] = {DType::f32,     DType::bf16,    DType::f16,
                                         DType::f8_e4m3, DType::f8_e5m2, DType::i8};

// Exactly as many bytes as asked for; NaN patterns, so that scratch read before it is written
// shows.
class Workspace {
 public:
  explicit Workspace(std::int64_t bytes) : data_(to_size(bytes), std::byte{0xff}) {}
  TensorView view() {
    const auto size = static_cast<std::int64_t>(data_.size());
    return {size > 0 ? data_.data() : nullptr, DType::u8, {size}, test_device()};
  }

 private:
  DeviceVector<std::byte> data_;
};

// The values that a product multiplies: on the GPU bf16, where one of the activations is that.
inline std::vector<double> multiplied(std::vector<double> values,
                                      std::initializer_list<DType> activations) {
  const bool rounds = test_device() == Device::cuda &&
                      std::ranges::find(activations, DType::bf16) != activations.end();
  for (double& x : values) {
    if (rounds) x = bf16_value(bf16_bits(static_cast<float>(x)));
  }
  return values;
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
  bool gelu = false;
  SampleTensor* pre = nullptr;
};

inline void forward(const SampleTensor& x, const SampleWeight& w, const Extra& e, SampleTensor& y,
                    const Chunks& c = {}) {
  ThreadPool pool(c.threads);
  each_chunk(x.shape()[0], c, [&](std::int64_t begin, std::int64_t count) {
    ops::Linear call = {.x = x.view().rows(begin, count),
                        .w = w.view(),
                        .scale = e.scale,
                        .bias = e.bias,
                        .y = y.view().rows(begin, count),
                        .alpha = e.alpha,
                        .accumulate = e.accumulate,
                        .gelu = e.gelu,
                        .pre = e.pre ? e.pre->view().rows(begin, count) : TensorView()};
    Workspace workspace(ops::linear_workspace(ops::linear_size(call, c.threads)));
    call.workspace = workspace.view();
    ops::linear(call, test_stream(pool));
  });
  EXPECT_TRUE(y.padding_untouched());
  EXPECT_TRUE(!e.pre || e.pre->padding_untouched());
}

inline void backward(const SampleTensor& dy, const SampleWeight& w, const Extra& e,
                     SampleTensor& dx, const Chunks& c = {}) {
  ThreadPool pool(c.threads);
  each_chunk(dy.shape()[0], c, [&](std::int64_t begin, std::int64_t count) {
    ops::LinearDx call = {.dy = dy.view().rows(begin, count),
                          .w = w.view(),
                          .scale = e.scale,
                          .dx = dx.view().rows(begin, count),
                          .alpha = e.alpha,
                          .accumulate = e.accumulate};
    Workspace workspace(ops::linear_dx_workspace(ops::linear_size(call, c.threads)));
    call.workspace = workspace.view();
    ops::linear_dx(call, test_stream(pool));
  });
  EXPECT_TRUE(dx.padding_untouched());
}

inline void weight_gradient(const SampleTensor& x, const SampleTensor& dy, SampleTensor& dw,
                            SampleTensor& dbias, float alpha, const Chunks& c = {},
                            std::int64_t quantum = kTokenQuantum) {
  ThreadPool pool(c.threads);
  each_chunk(x.shape()[0], c, [&](std::int64_t begin, std::int64_t count) {
    ops::LinearDw call = {.x = x.view().rows(begin, count),
                          .dy = dy.view().rows(begin, count),
                          .dw = dw.view(),
                          .dbias = dbias.view(),
                          .alpha = alpha,
                          .quantum = quantum};
    Workspace workspace(ops::linear_dw_workspace(ops::linear_size(call, c.threads)));
    call.workspace = workspace.view();
    ops::linear_dw(call, test_stream(pool));
  });
  EXPECT_TRUE(dw.padding_untouched());
  EXPECT_TRUE(dbias.padding_untouched());
}

}  // namespace ballast::support
