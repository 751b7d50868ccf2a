#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/support/attention_case.h"

// Attention of several samples in one call of the GPU: heads of 64 in bf16 take the fused kernels,
// others products.
namespace ballast::ops {
namespace {

using support::Heads;
using support::Values;

constexpr std::int64_t kSamples = 3, kOwnHeads = 2, kAll = kSamples * kOwnHeads;
constexpr std::array<std::int32_t, kSamples> kLengths = {70, 64, 9};

struct Texts {
  std::int64_t queries, keys, width;
  bool causal;
  DType dtype;
};

struct Results {
  Values o, dq, dk, dv;
  std::vector<float> lse, dbias;
  bool operator==(const Results&) const = default;
};

// The first n rows of values [L, kAll, width].
Values first_rows(const Values& x, std::int64_t n, const Texts& t) {
  return {x.begin(), x.begin() + n * kAll * t.width};
}

// Queries and keys of `t` followed by `padding` rows more, heads_per_call of all heads at a time.
Results compute(const Texts& t, std::int64_t padding, std::int64_t heads_per_call) {
  const std::int64_t queries = t.queries + padding, keys = t.keys + padding;
  const auto given = [&](std::int64_t rows, unsigned seed) {
    Heads x(t.dtype, rows, kAll, t.width);
    x.set(support::random_values(t.dtype, to_size(rows * kAll * t.width), 1,
                                 seed));  // the same values whatever follows them
    return x;
  };
  Heads q = given(queries, 1), k = given(keys, 2), v = given(keys, 3), dout = given(queries, 4);
  Heads o = given(queries, 5), dq = given(queries, 5), dk = given(keys, 5), dv = given(keys, 5);
  support::DeviceVector<float> lse(to_size(kAll * queries));
  const std::int64_t entries = queries + keys - 1;
  support::DeviceVector<float> bias(to_size(kOwnHeads * entries));
  for (std::int64_t h = 0; h < kOwnHeads; ++h) {  // by distance, however many entries
    for (std::int64_t e = 0; e < entries; ++e) {
      bias[to_size(h * entries + e)] = std::sin(static_cast<float>((h + 1) * (e - queries)));
    }
  }
  support::DeviceVector<float> dbias(bias.size(), 0.25f);
  const TensorView all_lse = support::lse_view(lse, kAll, queries);
  const TensorView all_bias = support::lse_view(bias, kOwnHeads, entries);
  const TensorView all_dbias = support::lse_view(dbias, kOwnHeads, entries);
  ThreadPool pool(1);
  const AttentionDropout dropout = {.probability = 0.2,
                                    .source = random_source(7, "dropout", 2, "x")};
  for (std::int64_t h = 0; h < kAll; h += heads_per_call) {
    const std::int64_t n = std::min(heads_per_call, kAll - h);
    AttentionSamples samples = {.heads = kOwnHeads, .first = h};
    for (std::size_t s = 0; s < kLengths.size(); ++s) {
      samples.lengths[s] = kLengths[s];
      samples.sites[s] = static_cast<std::uint32_t>(11 + s);
    }
    const auto part = [&](const Heads& x) { return support::heads_of(x.view, h, n); };
    support::Scratch scratch(
        attention_backward_scores_workspace({queries, n, t.width}, keys, t.dtype));
    attention({.q = part(q),
               .k = part(k),
               .v = part(v),
               .o = part(o),
               .lse = all_lse.rows(h, n),
               .workspace = scratch.view(),
               .scale = 0.3f,
               .kv_length = keys,
               .bias = all_bias,
               .causal = t.causal,
               .dropout = dropout,
               .whole_scores = true,
               .samples = samples},
              support::test_stream(pool));
    scratch.spoil();
    attention_backward({.q = part(q),
                        .k = part(k),
                        .v = part(v),
                        .o = part(o),
                        .lse = all_lse.rows(h, n),
                        .dout = part(dout),
                        .dq = part(dq),
                        .dk = part(dk),
                        .dv = part(dv),
                        .workspace = scratch.view(),
                        .scale = 0.3f,
                        .kv_length = keys,
                        .bias = all_bias,
                        .dbias = all_dbias,
                        .causal = t.causal,
                        .dropout = dropout,
                        .whole_scores = true,
                        .samples = samples},
                       support::test_stream(pool));
  }
  support::device_memory_is_read();
  return {o.values(),
          dq.values(),
          dk.values(),
          dv.values(),
          {lse.begin(), lse.end()},
          {dbias.begin(), dbias.end()}};
}

class AttentionOfSamples : public testing::TestWithParam<Texts> {
 protected:
  void SetUp() override {
    if (support::test_device() != Device::cuda) GTEST_SKIP() << "one sample at a time elsewhere";
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionOfSamples,
                         testing::Values(Texts{66, 70, 64, false, DType::bf16},
                                         Texts{70, 70, 64, true, DType::bf16},
                                         Texts{20, 70, 16, true, DType::bf16}),
                         [](const auto& test) {
                           return fmt::format("{}x{}x{}", test.param.queries, test.param.keys,
                                              test.param.width);
                         });

TEST_P(AttentionOfSamples, GivesTheSameBitsInAnyGroups) {
  const Results whole = compute(GetParam(), 0, kAll);
  EXPECT_NE(whole.dbias, std::vector<float>(whole.dbias.size(), 0.25f));
  EXPECT_EQ(compute(GetParam(), 0, 1), whole);
  EXPECT_EQ(compute(GetParam(), 0, 4), whole);  // half of the second sample
}

TEST_P(AttentionOfSamples, GivesTheSameBitsWithPadding) {
  const Texts& t = GetParam();
  if (!attention_is_fused(t.width, t.dtype)) {
    GTEST_SKIP() << "cuBLASLt chooses how to multiply by the shape";
  }
  const Results as_it_is = compute(t, 0, kAll), padded = compute(t, 61, kAll);
  EXPECT_EQ(first_rows(padded.o, t.queries, t), as_it_is.o);
  EXPECT_EQ(first_rows(padded.dq, t.queries, t), as_it_is.dq);
  for (std::int64_t h = 0; h < kAll; ++h) {
    for (std::int64_t i = 0; i < t.queries; ++i) {
      ASSERT_EQ(padded.lse[to_size(h * (t.queries + 61) + i)],
                as_it_is.lse[to_size(h * t.queries + i)]);
    }
  }
  EXPECT_EQ(Values(padded.dk.begin() + t.keys * kAll * t.width, padded.dk.end()),
            Values(to_size(61 * kAll * t.width), 0.0));
}

}  // namespace
}  // namespace ballast::ops
