#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "memory/gpu.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_cuda_workspace.h"
#include "tests/ref/attention.h"
#include "tests/support/test_device.h"

// Attention of given sizes on random values, computed on the test's device, compared with the
// reference.
namespace ballast::support {

using AttentionSizes = ref::AttentionSizes;
using Values = std::vector<double>;

inline AttentionSizes attention_sizes(std::int64_t lq, std::int64_t lk, std::int64_t heads,
                                      std::int64_t width, std::int64_t kv = -1) {
  return {lq, lk, heads, width, kv < 0 ? lk : kv, 1 / std::sqrt(static_cast<double>(width))};
}

inline float round_to(DType t, double x) {
  const float f = static_cast<float>(x);
  if (t == DType::f32) return f;
  const auto u = std::bit_cast<std::uint32_t>(f);
  return std::bit_cast<float>((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}

inline Values random_values(DType t, std::size_t count, double deviation, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0, deviation);
  Values v(count);
  for (double& x : v) x = round_to(t, normal(engine));
  return v;
}

// A tensor [L, H, D] in memory of its own, with gaps of `gap` elements between heads and twice that
// between rows, and starting `shift` elements behind an aligned address.
struct Heads {
  Heads(DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t width,
        std::int64_t gap = 0, std::int64_t shift = 0)
      : memory(to_size(rows * (heads * (width + gap) + 2 * gap) + shift + 16) * size_of(dtype),
               std::byte{0xcd}),
        view(memory.data() + to_size(shift) * size_of(dtype), dtype, {rows, heads, width},
             {heads * (width + gap) + 2 * gap, width + gap, 1}, test_device()) {}

  std::byte* address(std::int64_t i, std::int64_t h, std::int64_t d) const {
    return view.data + to_size(i * view.strides[0] + h * view.strides[1] + d) * size_of(view.dtype);
  }
  template <class F>
  void each(F&& f) const {
    device_memory_is_read();
    std::size_t n = 0;
    for (std::int64_t i = 0; i < view.shape[0]; ++i) {
      for (std::int64_t h = 0; h < view.shape[1]; ++h) {
        for (std::int64_t d = 0; d < view.shape[2]; ++d) f(n++, address(i, h, d));
      }
    }
  }
  void set(const Values& values) {
    each([&](std::size_t n, std::byte* to) {
      const auto u = std::bit_cast<std::uint32_t>(static_cast<float>(values[n]));
      const auto high = static_cast<std::uint16_t>(u >> 16);  // the values are rounded already
      if (view.dtype == DType::f32) std::memcpy(to, &u, 4);
      if (view.dtype == DType::bf16) std::memcpy(to, &high, 2);
    });
  }
  Values values() const {
    Values v(to_size(view.elements()));
    each([&](std::size_t n, const std::byte* from) {
      std::uint32_t u = 0;
      if (view.dtype == DType::f32) std::memcpy(&u, from, 4);
      if (view.dtype == DType::bf16) std::memcpy(reinterpret_cast<std::byte*>(&u) + 2, from, 2);
      v[n] = std::bit_cast<float>(u);
    });
    return v;
  }

  DeviceVector<std::byte> memory;
  TensorView view;
};

struct AttentionInputs {
  AttentionSizes n;
  DType dtype;
  Values q, k, v, dout;

  AttentionInputs(const AttentionSizes& sizes, DType t, double deviation = 1)
      : n(sizes),
        dtype(t),
        q(random_values(t, n.q_size(), deviation, 1)),
        k(random_values(t, n.k_size(), deviation, 2)),
        v(random_values(t, n.k_size(), 1, 3)),
        dout(random_values(t, n.q_size(), 1, 4)) {}
};

struct AttentionOutputs {
  Values o, dq, dk, dv;
  std::vector<float> lse;
  bool operator==(const AttentionOutputs&) const = default;
};

struct AttentionWay {  // how to compute: none of it but the last may change a bit
  int threads = 2;
  std::int64_t gap = 0, shift = 0;
  std::int64_t heads_per_call = 0;
  bool deterministic = true;
};

inline Backend attention_backend(int threads = 1, bool deterministic = true) {
  static const int sm = test_device() == Device::cuda ? open_gpu().sm : 90;
  return {.device = test_device(), .threads = threads, .sm = sm, .deterministic = deterministic};
}

template <class View>
View heads_of(View x, std::int64_t first, std::int64_t count) {
  x.data += to_size(first * x.strides[1]) * size_of(x.dtype);
  x.shape[1] = count;
  return x;
}

// Scratch memory full of NaNs.
struct Scratch {
  explicit Scratch(std::int64_t bytes) : memory(to_size(bytes)) { spoil(); }
  void spoil() {
    device_memory_is_read();
    std::fill(memory.begin(), memory.end(), std::byte{0xff});
  }
  TensorView view() {
    return {memory.data(), DType::u8, {static_cast<std::int64_t>(memory.size())}, test_device()};
  }

  DeviceVector<std::byte> memory;
};

inline TensorView lse_view(DeviceVector<float>& lse, std::int64_t heads, std::int64_t queries) {
  return {reinterpret_cast<std::byte*>(lse.data()), DType::f32, {heads, queries}, test_device()};
}

inline AttentionOutputs compute(const AttentionInputs& in, const AttentionWay& way = {}) {
  const AttentionSizes& n = in.n;
  const auto make = [&](std::int64_t rows) {
    return Heads(in.dtype, rows, n.heads, n.width, way.gap, way.shift);
  };
  Heads q = make(n.queries), k = make(n.keys), v = make(n.keys), o = make(n.queries),
        dout = make(n.queries), dq = make(n.queries), dk = make(n.keys), dv = make(n.keys);
  q.set(in.q), k.set(in.k), v.set(in.v), dout.set(in.dout);
  DeviceVector<float> lse(to_size(n.heads * n.queries));
  const TensorView all_lse = lse_view(lse, n.heads, n.queries);
  ThreadPool pool(way.threads);
  const std::int64_t step = way.heads_per_call ? way.heads_per_call : n.heads;
  for (std::int64_t h = 0; h < n.heads; h += step) {
    const std::int64_t count = std::min(step, n.heads - h);
    const auto part = [&](const Heads& x) { return heads_of(x.view, h, count); };
    const Shape shape = {n.queries, count, n.width};
    const Backend backend = attention_backend(way.threads, way.deterministic);
    Scratch scratch(std::max(ops::attention_workspace(shape, in.dtype, backend),
                             ops::attention_backward_workspace(shape, n.kv, in.dtype, backend)));
    ops::attention({.q = part(q),
                    .k = part(k),
                    .v = part(v),
                    .o = part(o),
                    .lse = all_lse.rows(h, count),
                    .workspace = scratch.view(),
                    .scale = static_cast<float>(n.scale),
                    .kv_length = n.kv},
                   test_stream(pool));
    scratch.spoil();
    ops::attention_backward({.q = part(q),
                             .k = part(k),
                             .v = part(v),
                             .o = part(o),
                             .lse = all_lse.rows(h, count),
                             .dout = part(dout),
                             .dq = part(dq),
                             .dk = part(dk),
                             .dv = part(dv),
                             .workspace = scratch.view(),
                             .scale = static_cast<float>(n.scale),
                             .kv_length = n.kv,
                             .deterministic = way.deterministic},
                            test_stream(pool));
  }
  device_memory_is_read();
  return {o.values(), dq.values(), dk.values(), dv.values(), {lse.begin(), lse.end()}};
}

// |found - expected| <= share * size + own * |expected|, everywhere; weights below e^-87 count as
// 0. Equal infinities (the lse of no keys) are as near as can be.
inline void expect_near(const char* name, const Values& found, const Values& expected,
                        const Values& size, double share, double own) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == expected[i]) continue;
    ASSERT_LE(std::abs(found[i] - expected[i]),
              share * size[i] + own * std::abs(expected[i]) + 1e-30)
        << name << "[" << i << "] is " << found[i] << ", expected " << expected[i];
  }
}

// lse is a logarithm: rounding in the sum is absolute, that of the result relative.
inline void expect_lse_near(const std::vector<float>& found, const Values& expected) {
  Values size = expected;
  for (double& x : size) x = 1 + std::abs(x);
  expect_near("lse", Values(found.begin(), found.end()), expected, size, 1e-6, 0);
}

// Whether aligned operands go to cuDNN.
inline bool by_cudnn(const AttentionInputs& in) {
  return test_device() == Device::cuda &&
         ops::cuda::cudnn_has_attention(in.n.width, in.dtype, attention_backend().sm);
}

// share: f32 rounding in the scores (which are exponents) and in the sums over D and over the keys.
// own: a bf16 result is rounded once, by at most 2^-8 of its value. cuDNN rounds P and dS to bf16
// before it multiplies with them: 2^-9 of every term, and its sums on tensor cores truncate.
inline void expect_matches_reference(const AttentionInputs& in, const AttentionOutputs& found,
                                     double share) {
  if (by_cudnn(in)) share += std::ldexp(1.0, -8);
  const double own = in.dtype == DType::bf16 ? std::ldexp(1.0, -8) : 0;
  const ref::AttentionResult r = ref::attention(in.n, in.q, in.k, in.v);
  expect_near("o", found.o, r.o, r.o_size, share, own);
  expect_lse_near(found.lse, r.lse);
  // Backward sees the o that forward rounded; so does the reference.
  const ref::AttentionGradients g =
      ref::attention_backward(in.n, in.q, in.k, in.v, found.o, r.lse, in.dout);
  expect_near("dq", found.dq, g.dq, g.dq_size, share, own);
  expect_near("dk", found.dk, g.dk, g.dk_size, share, own);
  expect_near("dv", found.dv, g.dv, g.dv_size, share, own);
}

inline std::string dtype_name(const testing::TestParamInfo<DType>& test) {
  return std::string(name_of(test.param));
}

}  // namespace ballast::support
