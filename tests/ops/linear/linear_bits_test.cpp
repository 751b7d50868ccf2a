// The same bits whatever the threads, the chunks of rows, the strides and the addresses.

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "ops/gelu.h"
#include "ops/kernels/token_quantum.h"
#include "ops/linear/linear.h"
#include "tests/support/linear_calls.h"

namespace ballast::ops::linear_bits_test {
namespace {

using support::backward;
using support::Chunks;
using support::forward;
using support::kWeightTypes;
using support::SampleTensor;
using support::SampleWeight;
using support::weight_gradient;

// All ways to run a sample must give the bits of one thread and one call.
const Chunks kWays[] = {{.threads = 2},
                        {.threads = 3},
                        {.threads = 1, .rows = kTokenQuantum},
                        {.threads = 2, .rows = 2 * kTokenQuantum}};

class LinearBits : public testing::TestWithParam<std::tuple<DType, DType>> {};

TEST_P(LinearBits, DoNotDependOnThreadsChunksOrStrides) {
  const auto& [type, w_type] = GetParam();
  const std::int64_t rows = 700, inputs = 90, outputs = 290;
  const SampleWeight w = SampleWeight(w_type, outputs, inputs).fill(1);
  SampleTensor bias(DType::f32, {outputs});
  bias.fill_normal(2);
  const auto run = [&](const Chunks& c, SampleTensor::Layout layout) {
    SampleTensor x(type, {rows, inputs}, layout), dy(type, {rows, outputs}, layout);
    SampleTensor y(type, {rows, outputs}), dx(type, {rows, inputs});
    SampleTensor dw(DType::f32, {outputs, inputs}), dbias(DType::f32, {outputs});
    x.fill_normal(3), dy.fill_normal(4), y.fill_normal(5), dx.fill_normal(6), dw.fill_normal(7);
    forward(x, w, {.bias = bias.view(), .alpha = 0.7f, .accumulate = true}, y, c);
    backward(dy, w, {.alpha = 0.7f, .accumulate = true}, dx, c);
    weight_gradient(x, dy, dw, dbias, 0.7f, c);
    return std::tuple(y.bytes(), dx.bytes(), dw.bytes(), dbias.bytes());
  };
  const auto alone = run({}, {});
  for (const Chunks& way : kWays) {
    EXPECT_TRUE(run(way, {}) == alone) << way.threads << " threads, " << way.rows << " rows";
  }
  EXPECT_TRUE(run({.threads = 2}, {.row_padding = 7, .start = 5}) == alone);
}

INSTANTIATE_TEST_SUITE_P(Types, LinearBits,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::ValuesIn(kWeightTypes)));

// Several contraction blocks and panels, as in a real layer.
TEST(LinearBits, DoNotDependOnChunksInAWideLayer) {
  const std::int64_t rows = 520, inputs = 1030, outputs = 1040;
  const SampleWeight w = SampleWeight(DType::f8_e4m3, outputs, inputs).fill(1);
  SampleTensor x(DType::f32, {rows, inputs});
  x.fill_normal(2);
  const auto run = [&](const Chunks& c) {
    SampleTensor y(DType::f32, {rows, outputs}), dx(DType::f32, {rows, inputs});
    SampleTensor dw(DType::f32, {outputs, inputs}), dbias(DType::f32, {outputs});
    forward(x, w, {}, y, c);
    backward(y, w, {}, dx, c);
    weight_gradient(x, y, dw, dbias, 1, c);
    return std::tuple(y.bytes(), dx.bytes(), dw.bytes(), dbias.bytes());
  };
  const auto alone = run({});
  EXPECT_TRUE(run({.threads = 2, .rows = kTokenQuantum}) == alone);
  EXPECT_TRUE(run({.threads = 3, .rows = 2 * kTokenQuantum}) == alone);
}

// Rows and columns that the GPU's library takes where they are: a layer, and the two sides of an
// adapter of rank 16.
TEST(LinearBits, DoNotDependOnChunksInAlignedBf16) {
  const std::int64_t rows = 1100;
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes = {{512, 320}, {512, 16}, {16, 512}};
  if (support::test_device() == Device::cuda) {
    // Large enough for an algorithm by rows; with appended adapters, alone and three, and of ffn.
    sizes.insert(sizes.end(), {{5136, 5120}, {5168, 5120}, {5120, 5136}, {5136, 13824}});
  }
  for (const auto& [inputs, outputs] : sizes) {
    const SampleWeight w = SampleWeight(DType::bf16, outputs, inputs).fill(1);
    SampleTensor x(DType::bf16, {rows, inputs}), dy(DType::bf16, {rows, outputs});
    x.fill_normal(2), dy.fill_normal(3);
    const auto run = [&](const Chunks& c) {
      SampleTensor y(DType::bf16, {rows, outputs}), dx(DType::bf16, {rows, inputs});
      SampleTensor dw(DType::f32, {outputs, inputs}), dbias(DType::f32, {outputs});
      SampleTensor activated(DType::bf16, {rows, outputs});
      forward(x, w, {}, y, c);
      forward(x, w, {.gelu = true}, activated, c);
      backward(dy, w, {}, dx, c);
      weight_gradient(x, dy, dw, dbias, 1, c);
      return std::tuple(y.bytes(), activated.bytes(), dx.bytes(), dw.bytes(), dbias.bytes());
    };
    const auto alone = run({});
    EXPECT_TRUE(run({}) == alone) << inputs << " -> " << outputs;
    for (const std::int64_t quanta : {1, 2, 3}) {
      EXPECT_TRUE(run({.threads = 2, .rows = quanta * kTokenQuantum}) == alone)
          << inputs << " -> " << outputs << ", " << quanta << " quanta";
    }
  }
}

// The GPU's kernel for these takes more rows to a block where there are many.
TEST(LinearBits, OfFewColumnsDoNotDependOnTheNumberOfRows) {
  const std::int64_t rows = support::test_device() == Device::cuda ? 4200 : 600;
  for (const std::int64_t outputs : {16, 48}) {
    const SampleWeight w = SampleWeight(DType::bf16, outputs, 1024).fill(1);
    SampleTensor x(DType::bf16, {rows, 1024});
    x.fill_normal(2);
    const auto run = [&](const Chunks& c) {
      SampleTensor y(DType::bf16, {rows, outputs});
      forward(x, w, {}, y, c);
      return y.bytes();
    };
    EXPECT_TRUE(run({.threads = 2}) == run({.threads = 2, .rows = kTokenQuantum})) << outputs;
  }
}

// Chunks of whole quanta, of rows that end within one.
TEST(LinearBits, OfGradientsOfFewColumnsDoNotDependOnChunks) {
  const std::int64_t rows = 3 * kTokenQuantum + 77;
  for (const auto& [inputs, outputs] : {std::pair(3072, 16), std::pair(40, 3072)}) {
    SampleTensor x(DType::bf16, {rows, inputs}), dy(DType::bf16, {rows, outputs});
    x.fill_normal(1), dy.fill_normal(2);
    const auto run = [&](const Chunks& c) {
      SampleTensor dw(DType::f32, {outputs, inputs}), dbias(DType::f32, {outputs});
      dw.fill_normal(3), dbias.fill_normal(4);
      weight_gradient(x, dy, dw, dbias, 0.5f, c);
      return dw.bytes();
    };
    const auto whole = run({.threads = 2});
    EXPECT_TRUE(run({.threads = 2}) == whole);
    EXPECT_TRUE(run({.threads = 2, .rows = 2 * kTokenQuantum}) == whole) << outputs;
  }
}

// Larger quanta, cut at their multiples.
TEST(LinearBits, OfGradientsInLargeQuantaDoNotDependOnChunks) {
  const std::int64_t rows = 2 * kWideQuantum + 77, size = 264;
  SampleTensor x(DType::bf16, {rows, size}), dy(DType::bf16, {rows, size});
  x.fill_normal(1), dy.fill_normal(2);
  const auto run = [&](const Chunks& c) {
    SampleTensor dw(DType::f32, {size, size}), dbias(DType::f32, {size});
    dw.fill_normal(3), dbias.fill_normal(4);
    weight_gradient(x, dy, dw, dbias, 1, c, kWideQuantum);
    return std::pair(dw.bytes(), dbias.bytes());
  };
  EXPECT_TRUE(run({.threads = 2}) == run({.threads = 2, .rows = kWideQuantum}));
}

// Nothing is rounded in between: on the CPU the fused form is the two operations.
TEST(LinearBits, OfGeluInF32AreThoseOfGeluAfterTheProduct) {
  if (support::test_device() == Device::cuda) GTEST_SKIP() << "the library has a gelu of its own";
  const SampleWeight w = SampleWeight(DType::bf16, 70, 50).fill(2);
  SampleTensor x(DType::f32, {300, 50}), bias(DType::bf16, {70});
  SampleTensor fused(DType::f32, {300, 70}), apart(DType::f32, {300, 70});
  x.fill_normal(1), bias.fill_normal(3);
  forward(x, w, {.bias = bias.view(), .gelu = true}, fused);
  forward(x, w, {.bias = bias.view()}, apart);
  ThreadPool pool(1);
  gelu({.x = apart.view(), .y = apart.view()}, support::test_stream(pool));
  EXPECT_EQ(fused.bytes(), apart.bytes());
}

// A block that is kept has what gelu is applied to from the product that also applies it, another
// makes the two by products of their own, each in chunks of its own. On the GPU that product has a
// second result where it is wide: the feed-forward layers of 1.3B, 5B and 14B, alone and with
// adapters, for tokens of odd numbers.
TEST(LinearBits, OfGeluAndItsInputAreThoseOfTwoProducts) {
  struct Size {
    std::int64_t inputs, outputs;
    std::vector<std::int64_t> rows;
  };
  std::vector<Size> sizes = {{64, 96, {520}}};
  if (support::test_device() == Device::cuda) {
    sizes.insert(sizes.end(), {{1024, 1040, {8449}},  // more than one product of both
                               {1552, 8960, {7, 1037}},
                               {3088, 14336, {905}},
                               {5136, 13824, {1101}}});
  }
  for (const auto& [inputs, outputs, samples] : sizes) {
    const SampleWeight w = SampleWeight(DType::bf16, outputs, inputs).fill(1);
    SampleTensor bias(DType::bf16, {outputs});
    bias.fill_normal(2);
    for (const std::int64_t rows : samples) {
      SampleTensor x(DType::bf16, {rows, inputs});
      x.fill_normal(3);
      // Of two widths: one with room for an adapter.
      const SampleTensor no_sum(DType::bf16, {rows, outputs});
      const SampleTensor nothing(DType::bf16, {rows, outputs}, {.row_padding = 64});
      SampleTensor sum = no_sum, alone = nothing;
      forward(x, w, {.bias = bias.view()}, sum);
      forward(x, w, {.bias = bias.view(), .gelu = true}, alone);
      for (const std::int64_t chunk : {rows, kTokenQuantum}) {
        SampleTensor y = nothing, pre = no_sum;
        forward(x, w, {.bias = bias.view(), .gelu = true, .pre = &pre}, y,
                {.threads = 2, .rows = chunk});
        EXPECT_TRUE(y.bytes() == alone.bytes()) << rows << " x " << inputs << " by " << chunk;
        EXPECT_TRUE(pre.bytes() == sum.bytes()) << rows << " x " << inputs << " by " << chunk;
      }
    }
  }
}

TEST(LinearBits, DoNotDependOnTheAddressOfF32Weights) {
  SampleTensor x(DType::f32, {30, 50}), a(DType::f32, {30, 40}), b(DType::f32, {30, 40});
  x.fill_normal(1);
  forward(x, SampleWeight(DType::f32, 40, 50, 0).fill(2), {}, a);
  forward(x, SampleWeight(DType::f32, 40, 50, 1).fill(2), {}, b);
  EXPECT_EQ(a.bytes(), b.bytes());
}

}  // namespace
}  // namespace ballast::ops::linear_bits_test
