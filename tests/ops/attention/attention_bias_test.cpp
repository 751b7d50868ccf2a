#include <gtest/gtest.h>

#include "core/error.h"
#include "core/to_size.h"
#include "ops/attention/attention_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "tests/support/attention_case.h"

// A bias on the scores, its gradient, and the causal mask: in the reference, in the plain GPU
// kernel for any bias, and in the operation for one by distance.
namespace ballast::ops {
namespace {

using support::expect_near;
using support::Heads;
using support::Values;
using Inputs = support::AttentionInputs;

struct Biased : Inputs {
  explicit Biased(const support::AttentionSizes& n, DType dtype, DType bias_dtype)
      : Inputs(n, dtype), bias(support::random_values(bias_dtype, this->n.scores(), 1, 5)) {}
  Values bias;  // [H, Lq, Lk]
};

support::AttentionSizes causal(support::AttentionSizes n) {
  n.causal = true;
  return n;
}

double loss(const Biased& x) {
  const Values o = ref::attention(x.n, x.q, x.k, x.v, x.bias).o;
  double sum = 0;
  for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * x.dout[i];
  return sum;
}

TEST(AttentionRef, BackwardMatchesFiniteDifferences) {
  for (const bool mask : {false, true}) {
    for (const bool biased : {false, true}) {
      support::AttentionSizes n = support::attention_sizes(6, 5, 2, 4, 4);
      n.causal = mask;
      Biased in(n, DType::f32, DType::f32);
      if (!biased) in.bias.clear();
      const ref::AttentionResult r = ref::attention(n, in.q, in.k, in.v, in.bias);
      const ref::AttentionGradients g =
          ref::attention_backward(n, in.q, in.k, in.v, r.o, r.lse, in.dout, in.bias);
      const auto compare = [&](const char* name, auto x, const Values& gradient) {
        constexpr double kStep = 1e-5;  // the error of a central difference is about kStep^2
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          Biased up = in, down = in;
          (up.*x)[i] += kStep;
          (down.*x)[i] -= kStep;
          ASSERT_NEAR((loss(up) - loss(down)) / (2 * kStep), gradient[i], 1e-8) << name << " " << i;
        }
      };
      compare("dq", &Biased::q, g.dq);
      compare("dk", &Biased::k, g.dk);
      compare("dv", &Biased::v, g.dv);
      if (biased) compare("dbias", &Biased::bias, g.dbias);
    }
  }
}

struct Case {
  DType dtype, bias_dtype;
};
class PlainAttention : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (support::test_device() != Device::cuda) GTEST_SKIP() << "a kernel of the GPU";
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, PlainAttention,
                         testing::Values(Case{DType::f32, DType::f32},
                                         Case{DType::bf16, DType::bf16},
                                         Case{DType::bf16, DType::f32}),
                         [](const auto& test) {
                           return fmt::format("{}_{}", name_of(test.param.dtype),
                                              name_of(test.param.bias_dtype));
                         });

// A view [H, Lq, Lk] of scores that lie as [Lq, H, Lk], as one bias table for all heads would.
TensorView by_head(const TensorView& x) {
  TensorView v = x;
  std::swap(v.shape[0], v.shape[1]);
  std::swap(v.strides[0], v.strides[1]);
  return v;
}

// From [H, Lq, Lk] to [Lq, H, Lk] and back: a swap of the first two.
Values swapped(const Values& x, std::int64_t a, std::int64_t b, std::int64_t c) {
  Values y(x.size());
  for (std::int64_t i = 0; i < a; ++i) {
    for (std::int64_t j = 0; j < b; ++j) {
      for (std::int64_t k = 0; k < c; ++k) {
        y[to_size((j * a + i) * c + k)] = x[to_size((i * b + j) * c + k)];
      }
    }
  }
  return y;
}

TEST_P(PlainAttention, MatchesReferenceWithBiasAndMask) {
  for (const support::AttentionSizes& n :
       {support::attention_sizes(40, 70, 2, 64, 67),
        causal(support::attention_sizes(70, 70, 2, 64)),
        causal(support::attention_sizes(90, 50, 3, 7, 33)),
        causal(support::attention_sizes(50, 90, 1, 256)), support::attention_sizes(1, 1, 1, 1)}) {
    SCOPED_TRACE(testing::Message() << n.queries << " x " << n.keys << ", causal " << n.causal);
    const Biased in(n, GetParam().dtype, GetParam().bias_dtype);
    const auto make = [&](std::int64_t rows) { return Heads(in.dtype, rows, n.heads, n.width, 3); };
    Heads q = make(n.queries), k = make(n.keys), v = make(n.keys), o = make(n.queries),
          dout = make(n.queries), dq = make(n.queries), dk = make(n.keys), dv = make(n.keys);
    Heads bias(GetParam().bias_dtype, n.queries, n.heads, n.keys, 1, 1);
    Heads dbias(GetParam().bias_dtype, n.queries, n.heads, n.keys, 2, 1);
    q.set(in.q), k.set(in.k), v.set(in.v), dout.set(in.dout);
    bias.set(swapped(in.bias, n.heads, n.queries, n.keys));
    support::DeviceVector<float> lse(to_size(n.heads * n.queries));
    const auto scale = static_cast<float>(n.scale);
    if constexpr (kBuiltWithCuda) {
      ThreadPool pool(1);
      const cuda::View lse_view = support::lse_view(lse, n.heads, n.queries);
      cuda::plain_attention({.q = q.view,
                             .k = k.view,
                             .v = v.view,
                             .o = o.view,
                             .lse = lse_view,
                             .workspace = {},
                             .bias = by_head(bias.view),
                             .scale = scale,
                             .kv_length = n.kv,
                             .causal = n.causal},
                            support::test_stream(pool).native);
      cuda::plain_attention_backward({.q = q.view,
                                      .k = k.view,
                                      .v = v.view,
                                      .o = o.view,
                                      .lse = lse_view,
                                      .dout = dout.view,
                                      .dq = dq.view,
                                      .dk = dk.view,
                                      .dv = dv.view,
                                      .workspace = {},
                                      .bias = by_head(bias.view),
                                      .dbias = by_head(dbias.view),
                                      .scale = scale,
                                      .kv_length = n.kv,
                                      .causal = n.causal},
                                     support::test_stream(pool).native);
    }
    support::device_memory_is_read();
    const double share = 4e-6;  // as without bias: f32 rounding
    const auto own = [](DType t) { return t == DType::bf16 ? 0x1p-8 : 0; };
    const ref::AttentionResult r = ref::attention(n, in.q, in.k, in.v, in.bias);
    expect_near("o", o.values(), r.o, r.o_size, share, own(in.dtype));
    support::expect_lse_near({lse.begin(), lse.end()}, r.lse);
    const ref::AttentionGradients g =
        ref::attention_backward(n, in.q, in.k, in.v, o.values(), r.lse, in.dout, in.bias);
    expect_near("dq", dq.values(), g.dq, g.dq_size, share, own(in.dtype));
    expect_near("dk", dk.values(), g.dk, g.dk_size, share, own(in.dtype));
    expect_near("dv", dv.values(), g.dv, g.dv_size, share, own(in.dtype));
    expect_near("dbias", swapped(dbias.values(), n.queries, n.heads, n.keys), g.dbias, g.dbias_size,
                share, own(GetParam().bias_dtype));
  }
}

// ---- by distance

struct ByDistance {
  Biased in;
  Values bias, dbias_before;  // [H, Lq + Lk - 1]

  ByDistance(const support::AttentionSizes& n, DType dtype)
      : in(n, dtype, DType::f32),
        bias(support::random_values(DType::f32, entries(n), 1, 6)),
        dbias_before(support::random_values(DType::f32, entries(n), 1, 7)) {
    for (std::int64_t h = 0; h < n.heads; ++h) {
      for (std::int64_t i = 0; i < n.queries; ++i) {
        for (std::int64_t j = 0; j < n.keys; ++j) in.bias[n.score(h, i, j)] = bias[at(n, h, i, j)];
      }
    }
  }
  static std::size_t entries(const support::AttentionSizes& n) {
    return to_size(n.heads * (n.queries + n.keys - 1));
  }
  static std::size_t at(const support::AttentionSizes& n, std::int64_t h, std::int64_t i,
                        std::int64_t j) {
    return to_size(h * (n.queries + n.keys - 1) + j - i + n.queries - 1);
  }
  Values along_diagonals(const Values& scores) const {
    Values sums(bias.size());
    for (std::int64_t h = 0; h < in.n.heads; ++h) {
      for (std::int64_t i = 0; i < in.n.queries; ++i) {
        for (std::int64_t j = 0; j < in.n.keys; ++j) {
          sums[at(in.n, h, i, j)] += scores[in.n.score(h, i, j)];
        }
      }
    }
    return sums;
  }
};

struct ByDistanceOut {
  Values o, dq, dk, dv;
  std::vector<float> lse, dbias;
  bool operator==(const ByDistanceOut&) const = default;
};

ByDistanceOut compute(const ByDistance& x, int threads, bool whole_scores = false,
                      const AttentionDropout& dropout = {}) {
  const support::AttentionSizes& n = x.in.n;
  const auto make = [&](std::int64_t rows) { return Heads(x.in.dtype, rows, n.heads, n.width); };
  Heads q = make(n.queries), k = make(n.keys), v = make(n.keys), o = make(n.queries),
        dout = make(n.queries), dq = make(n.queries), dk = make(n.keys), dv = make(n.keys);
  q.set(x.in.q), k.set(x.in.k), v.set(x.in.v), dout.set(x.in.dout);
  support::DeviceVector<float> lse(to_size(n.heads * n.queries));
  support::DeviceVector<float> bias(x.bias.begin(), x.bias.end());
  support::DeviceVector<float> dbias(x.dbias_before.begin(), x.dbias_before.end());
  const TensorView lse_view = support::lse_view(lse, n.heads, n.queries);
  const std::int64_t entries = n.queries + n.keys - 1;
  ThreadPool pool(threads);
  const Backend backend = support::attention_backend(threads);
  const Shape shape = {n.queries, n.heads, n.width};
  support::Scratch scratch(
      std::max({attention_workspace(shape, x.in.dtype, backend),
                attention_backward_workspace(shape, n.kv, x.in.dtype, backend),
                attention_backward_scores_workspace(shape, n.keys, x.in.dtype)}));
  attention({.q = q.view,
             .k = k.view,
             .v = v.view,
             .o = o.view,
             .lse = lse_view,
             .workspace = scratch.view(),
             .scale = 1,
             .kv_length = n.kv,
             .bias = support::lse_view(bias, n.heads, entries),
             .causal = n.causal,
             .dropout = dropout,
             .whole_scores = whole_scores},
            support::test_stream(pool));
  scratch.spoil();
  attention_backward({.q = q.view,
                      .k = k.view,
                      .v = v.view,
                      .o = o.view,
                      .lse = lse_view,
                      .dout = dout.view,
                      .dq = dq.view,
                      .dk = dk.view,
                      .dv = dv.view,
                      .workspace = scratch.view(),
                      .scale = 1,
                      .kv_length = n.kv,
                      .bias = support::lse_view(bias, n.heads, entries),
                      .dbias = support::lse_view(dbias, n.heads, entries),
                      .causal = n.causal,
                      .dropout = dropout,
                      .whole_scores = whole_scores},
                     support::test_stream(pool));
  support::device_memory_is_read();
  return {o.values(),
          dq.values(),
          dk.values(),
          dv.values(),
          {lse.begin(), lse.end()},
          {dbias.begin(), dbias.end()}};
}

TEST(AttentionByDistance, MatchesReferenceAndAddsTheBiasGradientUp) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (support::AttentionSizes n :
         {support::attention_sizes(40, 70, 2, 16, 67), support::attention_sizes(300, 300, 1, 8),
          causal(support::attention_sizes(250, 250, 2, 8)),
          causal(support::attention_sizes(90, 50, 3, 7, 33)),
          support::attention_sizes(1, 21, 2, 16, 9), support::attention_sizes(1, 1, 1, 1)}) {
      SCOPED_TRACE(testing::Message() << n.queries << " x " << n.keys << ", causal " << n.causal);
      n.scale = 1;
      const ByDistance x(n, dtype);
      const ByDistanceOut found = compute(x, 1);
      const Biased& in = x.in;
      const double share = 8e-6;  // f32 rounding of scores that are four times as large as usual
      const double own = dtype == DType::bf16 ? 0x1p-8 : 0;
      const ref::AttentionResult r = ref::attention(n, in.q, in.k, in.v, in.bias);
      expect_near("o", found.o, r.o, r.o_size, share, own);
      support::expect_lse_near(found.lse, r.lse);
      const ref::AttentionGradients g =
          ref::attention_backward(n, in.q, in.k, in.v, found.o, r.lse, in.dout, in.bias);
      expect_near("dq", found.dq, g.dq, g.dq_size, share, own);
      expect_near("dk", found.dk, g.dk, g.dk_size, share, own);
      expect_near("dv", found.dv, g.dv, g.dv_size, share, own);
      Values want = x.along_diagonals(g.dbias), size = x.along_diagonals(g.dbias_size);
      for (std::size_t i = 0; i < want.size(); ++i) {
        want[i] += x.dbias_before[i];
        size[i] += std::abs(x.dbias_before[i]);
      }
      expect_near("dbias", {found.dbias.begin(), found.dbias.end()}, want, size, share, 0);
      EXPECT_EQ(found, compute(x, 3));
    }
  }
}

// On the GPU by products of bf16 weights and slopes of scores, which round every term; the plain
// kernel and the CPU round none of them. Heads of 64 in bf16 take the fused kernels, whose tiles
// have 64 rows and columns; in f32 they are products like the others, of scores too large for this
// bound.
TEST(AttentionByDistance, OfWholeScoresDropsWeightsAndMatchesReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (support::AttentionSizes n :
         {support::attention_sizes(40, 70, 2, 16, 67),
          causal(support::attention_sizes(65, 260, 1, 8)),
          causal(support::attention_sizes(20, 13, 3, 7, 9)),
          support::attention_sizes(2, 1030, 1, 8, 1029), support::attention_sizes(1, 1, 1, 1),
          support::attention_sizes(1, 7, 2, 64), support::attention_sizes(64, 63, 1, 64, 0),
          support::attention_sizes(65, 130, 2, 64, 127),
          causal(support::attention_sizes(7, 1, 1, 64)),
          causal(support::attention_sizes(130, 65, 2, 64, 64)),
          causal(support::attention_sizes(130, 130, 1, 64))}) {
      if (n.width == 64 && !attention_is_fused(n.width, dtype)) continue;
      for (const double p : {0.0, 0.3}) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << n.queries << " x " << n.keys
                                        << ", causal " << n.causal << ", dropout " << p);
        n.scale = 1;
        const ByDistance x(n, dtype);
        const AttentionDropout dropout = {
            .probability = p, .source = random_source(7, "dropout", 2, "x"), .first_head = 3};
        Values keep(n.scores(), 1);
        for (std::int64_t h = 0; p > 0 && h < n.heads; ++h) {
          for (std::int64_t i = 0; i < n.queries; ++i) {
            for (std::int64_t j = 0; j < n.keys; ++j) {
              const auto element = static_cast<std::uint64_t>(((((3 + h) << 20) + i) << 20) + j);
              const bool gone = dropout.source.word(element) < p * 0x1p32;
              keep[n.score(h, i, j)] = gone ? 0 : 1 / (1 - p);
            }
          }
        }
        const ByDistanceOut found = compute(x, 2, true, dropout);
        const Biased& in = x.in;
        const double own = dtype == DType::bf16 ? 0x1p-8 : 0;
        const double share = 8e-6 + (support::test_device() == Device::cuda ? own : 0);
        const ref::AttentionResult r = ref::attention(n, in.q, in.k, in.v, in.bias, keep);
        expect_near("o", found.o, r.o, r.o_size, share, own);
        support::expect_lse_near(found.lse, r.lse);
        const ref::AttentionGradients g =
            ref::attention_backward(n, in.q, in.k, in.v, found.o, r.lse, in.dout, in.bias, keep);
        expect_near("dq", found.dq, g.dq, g.dq_size, share, own);
        expect_near("dk", found.dk, g.dk, g.dk_size, share, own);
        expect_near("dv", found.dv, g.dv, g.dv_size, share, own);
        Values want = x.along_diagonals(g.dbias), size = x.along_diagonals(g.dbias_size);
        for (std::size_t i = 0; i < want.size(); ++i) {
          want[i] += x.dbias_before[i];
          size[i] += std::abs(x.dbias_before[i]);
        }
        expect_near("dbias", {found.dbias.begin(), found.dbias.end()}, want, size, share, 0);
      }
    }
  }
}

}  // namespace
}  // namespace ballast::ops
