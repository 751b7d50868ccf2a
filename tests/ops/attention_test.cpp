#include "ops/attention.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"
#include "core/thread_pool.h"
#include "plan/bindings.h"
#include "tests/ref/attention.h"

namespace ballast::ops {
namespace {

using Sizes = ref::AttentionSizes;
using Values = std::vector<double>;

float round_to(DType t, double x) {
  const float f = static_cast<float>(x);
  if (t == DType::f32) return f;
  const auto u = std::bit_cast<std::uint32_t>(f);
  return std::bit_cast<float>((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}

Values random_values(DType t, std::size_t count, double deviation, unsigned seed) {
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
      : memory(static_cast<std::size_t>(rows * (heads * (width + gap) + 2 * gap) + shift + 16) *
                   size_of(dtype),
               std::byte{0xcd}),
        view(memory.data() + static_cast<std::size_t>(shift) * size_of(dtype), dtype,
             {rows, heads, width}, {heads * (width + gap) + 2 * gap, width + gap, 1}) {}

  std::byte* address(std::int64_t i, std::int64_t h, std::int64_t d) const {
    return view.data + static_cast<std::size_t>(i * view.strides[0] + h * view.strides[1] + d) *
                           size_of(view.dtype);
  }
  template <class F>
  void each(F&& f) const {
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
    Values v(static_cast<std::size_t>(view.elements()));
    each([&](std::size_t n, const std::byte* from) {
      std::uint32_t u = 0;
      if (view.dtype == DType::f32) std::memcpy(&u, from, 4);
      if (view.dtype == DType::bf16) std::memcpy(reinterpret_cast<std::byte*>(&u) + 2, from, 2);
      v[n] = std::bit_cast<float>(u);
    });
    return v;
  }

  std::vector<std::byte> memory;
  TensorView view;
};

struct Inputs {
  Sizes n;
  DType dtype;
  Values q, k, v, dout;

  Inputs(const Sizes& sizes, DType t, double deviation = 1)
      : n(sizes),
        dtype(t),
        q(random_values(t, n.q_size(), deviation, 1)),
        k(random_values(t, n.k_size(), deviation, 2)),
        v(random_values(t, n.k_size(), 1, 3)),
        dout(random_values(t, n.q_size(), 1, 4)) {}
};

struct Outputs {
  Values o, dq, dk, dv;
  std::vector<float> lse;
  bool operator==(const Outputs&) const = default;
};

struct Way {  // how to compute: none of it may change a bit
  int threads = 2;
  std::int64_t gap = 0, shift = 0;
  std::int64_t heads_per_call = 0;
};

template <class View>
View heads_of(View x, std::int64_t first, std::int64_t count) {
  x.data += static_cast<std::size_t>(first * x.strides[1]) * size_of(x.dtype);
  x.shape[1] = count;
  return x;
}

Outputs compute(const Inputs& in, const Way& way = {}) {
  const Sizes& n = in.n;
  const auto make = [&](std::int64_t rows) {
    return Heads(in.dtype, rows, n.heads, n.width, way.gap, way.shift);
  };
  Heads q = make(n.queries), k = make(n.keys), v = make(n.keys), o = make(n.queries),
        dout = make(n.queries), dq = make(n.queries), dk = make(n.keys), dv = make(n.keys);
  q.set(in.q), k.set(in.k), v.set(in.v), dout.set(in.dout);
  std::vector<float> lse(static_cast<std::size_t>(n.heads * n.queries));
  const TensorView lse_view(reinterpret_cast<std::byte*>(lse.data()), DType::f32,
                            {n.heads, n.queries});
  ThreadPool pool(way.threads);
  const std::int64_t step = way.heads_per_call ? way.heads_per_call : n.heads;
  for (std::int64_t h = 0; h < n.heads; h += step) {
    const std::int64_t count = std::min(step, n.heads - h);
    const auto part = [&](const Heads& x) { return heads_of(x.view, h, count); };
    const Shape shape = {n.queries, count, n.width};
    const auto bytes = static_cast<std::size_t>(
        std::max(attention_workspace(shape, way.threads),
                 attention_backward_workspace(shape, in.dtype, way.threads)));
    std::vector<std::byte> memory(bytes, std::byte{0xff});  // 0xffffffff is a NaN
    const TensorView workspace(memory.data(), DType::u8, {static_cast<std::int64_t>(bytes)});
    attention({.q = part(q),
               .k = part(k),
               .v = part(v),
               .o = part(o),
               .lse = lse_view.rows(h, count),
               .workspace = workspace,
               .scale = static_cast<float>(n.scale),
               .kv_length = n.kv},
              {.pool = &pool});
    std::fill(memory.begin(), memory.end(), std::byte{0xff});
    attention_backward({.q = part(q),
                        .k = part(k),
                        .v = part(v),
                        .o = part(o),
                        .lse = lse_view.rows(h, count),
                        .dout = part(dout),
                        .dq = part(dq),
                        .dk = part(dk),
                        .dv = part(dv),
                        .workspace = workspace,
                        .scale = static_cast<float>(n.scale),
                        .kv_length = n.kv},
                       {.pool = &pool});
  }
  return {o.values(), dq.values(), dk.values(), dv.values(), std::move(lse)};
}

// |found - expected| <= share * size + own * |expected|, everywhere; weights below e^-87 count as
// 0.
void expect_near(const char* name, const Values& found, const Values& expected, const Values& size,
                 double share, double own) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_LE(std::abs(found[i] - expected[i]),
              share * size[i] + own * std::abs(expected[i]) + 1e-30)
        << name << "[" << i << "] is " << found[i] << ", expected " << expected[i];
  }
}

// share: f32 rounding in the scores (which are exponents) and in the sums over D and over the keys.
// own: a bf16 result is rounded once, by at most 2^-8 of its value.
void expect_matches_reference(const Inputs& in, const Outputs& found, double share) {
  const double own = in.dtype == DType::bf16 ? std::ldexp(1.0, -8) : 0;
  const ref::AttentionResult r = ref::attention(in.n, in.q, in.k, in.v);
  expect_near("o", found.o, r.o, r.o_size, share, own);
  const Values lse(found.lse.begin(), found.lse.end());
  Values lse_size = r.lse;
  for (double& x : lse_size) x = 1 + std::abs(x);
  expect_near("lse", lse, r.lse, lse_size, 1e-6, 0);
  // Backward sees the o that forward rounded; so does the reference.
  const ref::AttentionGradients g =
      ref::attention_backward(in.n, in.q, in.k, in.v, found.o, r.lse, in.dout);
  expect_near("dq", found.dq, g.dq, g.dq_size, share, own);
  expect_near("dk", found.dk, g.dk, g.dk_size, share, own);
  expect_near("dv", found.dv, g.dv, g.dv_size, share, own);
}

Sizes sizes(std::int64_t lq, std::int64_t lk, std::int64_t heads, std::int64_t width,
            std::int64_t kv = -1) {
  return {lq, lk, heads, width, kv < 0 ? lk : kv, 1 / std::sqrt(static_cast<double>(width))};
}

TEST(AttentionRef, BackwardMatchesFiniteDifferences) {
  const Inputs in(sizes(3, 5, 2, 4, 4), DType::f32);
  const ref::AttentionResult r = ref::attention(in.n, in.q, in.k, in.v);
  const ref::AttentionGradients g =
      ref::attention_backward(in.n, in.q, in.k, in.v, r.o, r.lse, in.dout);
  const auto loss = [&](const Inputs& x) {
    const Values o = ref::attention(x.n, x.q, x.k, x.v).o;
    double sum = 0;
    for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * x.dout[i];
    return sum;
  };
  const auto compare = [&](const char* name, Values Inputs::*x, const Values& gradient) {
    constexpr double kStep = 1e-5;  // the error of a central difference is about kStep^2
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      Inputs up = in, down = in;
      (up.*x)[i] += kStep;
      (down.*x)[i] -= kStep;
      ASSERT_NEAR((loss(up) - loss(down)) / (2 * kStep), gradient[i], 1e-8) << name << " " << i;
    }
  };
  compare("dq", &Inputs::q, g.dq);
  compare("dk", &Inputs::k, g.dk);
  compare("dv", &Inputs::v, g.dv);
}

class AttentionOnCpu : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, AttentionOnCpu, testing::Values(DType::f32, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(AttentionOnCpu, MatchesReference) {
  for (const Sizes& n : {
           sizes(1, 1, 1, 1),  // smallest
           sizes(7, 5, 2, 3),
           sizes(9, 17, 3, 33),  // odd widths
           sizes(50, 50, 2, 32),
           sizes(61, 61, 1, 40),
           sizes(48, 48, 2, 48),
           sizes(40, 70, 2, 64),
           sizes(192, 192, 1, 16),
           sizes(193, 191, 1, 16),  // around one tile
           sizes(385, 401, 1, 20),
           sizes(97, 577, 2, 8),     // several tiles
           sizes(130, 260, 2, 128),  // the models' head width
           sizes(5, 300, 1, 256),
           sizes(300, 2, 1, 7),
           sizes(12, 12, 5, 131),
       }) {
    SCOPED_TRACE(testing::Message() << n.queries << " queries, " << n.keys << " keys, " << n.heads
                                    << " heads of " << n.width);
    const Inputs in(n, GetParam());
    expect_matches_reference(in, compute(in), 4e-6);
  }
}

TEST_P(AttentionOnCpu, KeysBeyondTheLengthTakeNoPart) {
  for (const std::int64_t kv : {1, 2, 8, 16, 191, 192, 193, 200, 229}) {
    SCOPED_TRACE(kv);
    Inputs in(sizes(30, 230, 2, 12, kv), GetParam());
    for (std::int64_t j = kv; j < in.n.keys; ++j) {  // whatever stands there
      for (std::int64_t h = 0; h < in.n.heads; ++h) {
        for (std::int64_t d = 0; d < in.n.width; ++d) {
          in.k[in.n.at(j, h, d)] = std::numeric_limits<double>::quiet_NaN();
          in.v[in.n.at(j, h, d)] = std::numeric_limits<double>::infinity();
        }
      }
    }
    const Outputs found = compute(in);
    expect_matches_reference(in, found, 4e-6);
    for (std::size_t i = in.n.at(kv, 0, 0); i < found.dk.size(); ++i) {
      ASSERT_EQ(found.dk[i], 0.0);
      ASSERT_EQ(found.dv[i], 0.0);
    }
  }
}

TEST_P(AttentionOnCpu, NoKeysGiveZeros) {
  for (const Sizes& n : {sizes(20, 30, 2, 12, 0), sizes(20, 0, 2, 12)}) {
    const Outputs found = compute(Inputs(n, GetParam()));
    EXPECT_EQ(found.o, Values(n.q_size(), 0.0));
    EXPECT_EQ(found.dq, Values(n.q_size(), 0.0));
    EXPECT_EQ(found.dk, Values(n.k_size(), 0.0));
    EXPECT_EQ(found.dv, Values(n.k_size(), 0.0));
    for (const float x : found.lse) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
  }
}

TEST_P(AttentionOnCpu, NoQueriesGiveZeroGradients) {
  const Sizes n = sizes(0, 30, 2, 12);
  const Outputs found = compute(Inputs(n, GetParam()));
  EXPECT_EQ(found.dk, Values(n.k_size(), 0.0));
  EXPECT_EQ(found.dv, Values(n.k_size(), 0.0));
}

// Scores of +-1e4: e^score is far beyond every float, and the weights are nearly one-hot. A score
// and its lse are rounded by up to 2^-11 each here, so weights are off by 1e-3 at most.
TEST_P(AttentionOnCpu, LargeScoresDoNotOverflow) {
  Sizes n = sizes(40, 300, 2, 64);
  n.scale = 4000.0 / 8;
  const Inputs in(n, GetParam());
  const Outputs found = compute(in);
  double most = 0;
  for (const float x : found.lse) most = std::max(most, static_cast<double>(x));
  EXPECT_GT(most, 1e4);
  expect_matches_reference(in, found, 4e-3);
}

TEST_P(AttentionOnCpu, TheRunningMaximumMayRiseInEveryTile) {
  Inputs in(sizes(10, 800, 1, 8), GetParam());
  for (std::int64_t j = 0; j < in.n.keys; ++j) {
    for (std::int64_t d = 0; d < in.n.width; ++d) {
      in.k[in.n.at(j, 0, d)] = round_to(GetParam(), static_cast<double>(j) / 100);
    }
  }
  expect_matches_reference(in, compute(in), 2e-5);  // scores reach 20: 2^-20 each
}

TEST_P(AttentionOnCpu, ThreadsGroupsAndStridesDoNotChangeTheBits) {
  const Inputs in(sizes(250, 410, 5, 37, 400), GetParam());
  const Outputs expected = compute(in, {.threads = 1});
  expect_matches_reference(in, expected, 4e-6);
  EXPECT_TRUE(compute(in, {.threads = 2}) == expected);
  EXPECT_TRUE(compute(in, {.threads = 3}) == expected);
  EXPECT_TRUE(compute(in, {.threads = 8}) == expected) << "more threads than heads";
  EXPECT_TRUE(compute(in, {.threads = 2, .heads_per_call = 1}) == expected);
  EXPECT_TRUE(compute(in, {.threads = 3, .heads_per_call = 2}) == expected);
  EXPECT_TRUE(compute(in, {.threads = 2, .gap = 3, .shift = 1}) == expected);
  EXPECT_TRUE(compute(in, {.threads = 2, .gap = 5, .shift = 7, .heads_per_call = 3}) == expected);
}

TEST_P(AttentionOnCpu, QueriesInPiecesGiveTheSameBits) {
  const Inputs in(sizes(300, 210, 2, 24), GetParam());
  const Outputs whole = compute(in);
  for (const std::int64_t cut : {256, 192, 1, 77}) {
    for (const bool second : {false, true}) {
      Inputs part = in;
      const auto at = static_cast<std::ptrdiff_t>(in.n.at(cut, 0, 0));
      const auto keep = [&](const Values& v) {
        return second ? Values(v.begin() + at, v.end()) : Values(v.begin(), v.begin() + at);
      };
      part.n.queries = second ? in.n.queries - cut : cut;
      part.q = keep(in.q);
      part.dout = keep(in.dout);
      const Outputs found = compute(part);
      EXPECT_TRUE(found.o == keep(whole.o)) << cut;
      EXPECT_TRUE(found.dq == keep(whole.dq)) << cut;
    }
  }
}

TEST_P(AttentionOnCpu, WritesNothingBetweenTheHeads) {
  const Sizes n = sizes(20, 30, 3, 5);
  const Inputs in(n, GetParam());
  Heads q(GetParam(), 20, 3, 5), k(GetParam(), 30, 3, 5), o(GetParam(), 20, 3, 5, 4, 2);
  q.set(in.q), k.set(in.k);
  std::vector<float> lse(60);
  ThreadPool pool(1);
  std::vector<std::byte> memory(static_cast<std::size_t>(attention_workspace(q.view.shape, 1)));
  attention({.q = q.view,
             .k = k.view,
             .v = k.view,
             .o = o.view,
             .lse = {reinterpret_cast<std::byte*>(lse.data()), DType::f32, {3, 20}},
             .workspace = {memory.data(), DType::u8, {static_cast<std::int64_t>(memory.size())}},
             .scale = 1,
             .kv_length = 30},
            {.pool = &pool});
  o.each([&](std::size_t, std::byte* at) { std::memset(at, 0xcd, size_of(GetParam())); });
  EXPECT_EQ(o.memory, std::vector<std::byte>(o.memory.size(), std::byte{0xcd}));
}

TEST(Attention, RefusesOperandsThatDoNotFit) {
  ThreadPool pool(1);
  Heads q(DType::f32, 4, 2, 8), k(DType::f32, 6, 2, 8), o(DType::f32, 4, 2, 8);
  std::vector<float> lse(8);
  std::vector<std::byte> memory(static_cast<std::size_t>(attention_workspace(q.view.shape, 1)));
  const Attention good = {
      .q = q.view,
      .k = k.view,
      .v = k.view,
      .o = o.view,
      .lse = {reinterpret_cast<std::byte*>(lse.data()), DType::f32, {2, 4}},
      .workspace = {memory.data(), DType::u8, {static_cast<std::int64_t>(memory.size())}},
      .scale = 1,
      .kv_length = 6};
  EXPECT_NO_THROW(attention(good, {.pool = &pool}));
  const auto refuses = [&](auto&& change) {
    Attention bad = good;
    change(bad);
    EXPECT_THROW(attention(bad, {.pool = &pool}), Error);
  };
  refuses([](Attention& a) { a.kv_length = 7; });
  refuses([](Attention& a) { a.kv_length = -1; });
  refuses([](Attention& a) { a.workspace.shape[0] -= 1; });
  refuses([](Attention& a) { a.v.shape[0] = 5; });
  refuses([](Attention& a) { a.k.shape[2] = a.v.shape[2] = 4; });
  refuses([](Attention& a) { a.o.dtype = DType::bf16; });
  refuses([](Attention& a) { a.q.strides[2] = 2; });
  refuses([](Attention& a) { a.lse.shape = {4, 2}; });
}

// Runs what was recorded with every buffer at a place of its own.
struct Recording {
  explicit Recording(int threads) : pool(threads) { set.backend.threads = threads; }

  void run() {
    std::vector<std::uint64_t> offsets(set.buffers.size());
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < set.buffers.size(); ++i) {
      if (set.buffers[i].root.id != i) continue;
      offsets[i] = end;
      end += (set.buffers[i].bytes + 255) / 256 * 256;
    }
    memory.resize(end);  // what was placed before stays where it was
    const ArenaBases bases = {.base = {memory.data(), memory.data()}};
    for (const Instruction& i : set.programs[0].instructions) {
      i.run(Bindings(set, offsets, bases, i, step, {.pool = &pool}));
    }
  }

  ProgramSet set;
  StepValues step;
  ThreadPool pool;
  std::vector<std::byte> memory;
};

// Forward and backward as recorded, in groups; returns all outputs' bytes.
std::vector<std::byte> run_recorded(const Inputs& in, std::int64_t heads_per_group,
                                    std::vector<Instruction>* instructions) {
  const Sizes& n = in.n;
  Recording r(2);
  ProgramBuilder pb(r.set, "step");
  const Shape q_shape = {n.queries, n.heads, n.width}, k_shape = {n.keys, n.heads, n.width};
  const auto given = [&](const Shape& shape, const Values& values) {
    const Buffer b = pb.temp("given", shape, in.dtype);
    pb.emit("set", {.reads = {}, .writes = {b}}, [&values, b](const Bindings& at) {
      Heads dense(at.out(b).dtype, at.out(b).shape[0], at.out(b).shape[1], at.out(b).shape[2]);
      dense.set(values);
      std::memcpy(at.out(b).data, dense.view.data, at.out(b).bytes());
    });
    return b;
  };
  const Buffer q = given(q_shape, in.q), k = given(k_shape, in.k), v = given(k_shape, in.v),
               dout = given(q_shape, in.dout);
  const Buffer dq = pb.temp("dq", q_shape, in.dtype), dk = pb.temp("dk", k_shape, in.dtype),
               dv = pb.temp("dv", k_shape, in.dtype);
  const AttentionOptions options = {.scale = static_cast<float>(n.scale),
                                    .kv_length = n.kv == n.keys ? -1 : n.kv,
                                    .heads_per_group = heads_per_group};
  const AttentionOut out = attention(pb, q, k, v, options);
  EXPECT_EQ(pb.shape(out.o), q_shape);
  EXPECT_EQ(pb.shape(out.lse), Shape({n.heads, n.queries}));
  attention_backward(pb, {.q = q, .k = k, .v = v, .o = out.o, .lse = out.lse}, dout, dq, dk, dv,
                     options);
  std::vector<std::byte> bytes;
  pb.emit("get", {.reads = {out.o, out.lse, dq, dk, dv}, .writes = {}}, [&](const Bindings& at) {
    for (const Buffer b : {out.o, out.lse, dq, dk, dv}) {
      const ConstTensorView x = at.in(b);
      bytes.insert(bytes.end(), x.data, x.data + x.bytes());
    }
  });
  r.run();
  if (instructions) *instructions = r.set.programs[0].instructions;
  return bytes;
}

TEST_P(AttentionOnCpu, RecordedGroupsOfHeadsGiveTheSameBits) {
  const Inputs in(sizes(100, 230, 5, 24, 225), GetParam());
  const std::vector<std::byte> whole = run_recorded(in, 0, nullptr);
  const Outputs direct = compute(in);
  Heads o(GetParam(), 100, 5, 24);
  o.set(direct.o);
  EXPECT_EQ(std::memcmp(whole.data(), o.view.data, o.view.bytes()), 0);
  for (const std::int64_t group : {1, 2, 3, 5, 8}) {
    EXPECT_EQ(run_recorded(in, group, nullptr), whole) << group;
  }
}

TEST(Attention, RecordsOneInstructionPerGroupWithItsCost) {
  const Inputs in(sizes(10, 30, 5, 8), DType::bf16);
  std::vector<Instruction> all;
  run_recorded(in, 2, &all);
  ASSERT_EQ(all.size(), 4u + 3 + 3 + 1);  // groups of 2, 2 and 1 heads
  const double product = 2.0 * 10 * 30 * 8;
  for (std::size_t i = 4; i < 10; ++i) {
    const double heads = i % 3 == 0 ? 1 : 2;
    EXPECT_EQ(all[i].name, i < 7 ? "attention" : "attention_backward");
    EXPECT_EQ(all[i].cost.work, Work::attention);
    EXPECT_EQ(all[i].cost.flops, heads * product * (i < 7 ? 2 : 5));
    EXPECT_EQ(all[i].reads.size(), i < 7 ? 3u : 6u);
    EXPECT_EQ(all[i].writes.size(), i < 7 ? 3u : 4u);
  }
}

TEST(Attention, GroupsBoundTheWorkspaceOfABf16Gradient) {
  const std::int64_t length = 32760, width = 128;
  const auto bytes = [&](std::int64_t heads, int threads) {
    return attention_backward_workspace({length, heads, width}, DType::bf16, threads);
  };
  EXPECT_EQ(bytes(40, 16), 16 * bytes(1, 16));
  EXPECT_EQ(bytes(4, 16), 4 * bytes(1, 16));
  EXPECT_EQ(attention_backward_workspace({length, 40, width}, DType::f32, 1),
            bytes(40, 1) - length * width * 4);
}

}  // namespace
}  // namespace ballast::ops
