// The GPU's own product, for what cuBLASLt does not take (ops/linear/linear_cuda.h).

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "core/thread_pool.h"
#include "ops/kernels/on_device.h"
#include "ops/linear/linear_cuda.h"
#include "tests/support/sample_tensor.h"
#include "tests/support/test_device.h"

namespace ballast::ops {
namespace {

using support::SampleTensor;

constexpr std::int64_t kBatches = 2, kRows = 37, kColumns = 45, kDepth = 50;

using Case = std::tuple<DType, DType, bool, bool>;
class PlainProductOnGpu : public testing::TestWithParam<Case> {};

TEST_P(PlainProductOnGpu, MatchesReference) {
  if (support::test_device() != Device::cuda) GTEST_SKIP() << "a kernel of the GPU";
  const auto& [in, out, left_transposed, right_transposed] = GetParam();
  const auto shape = [](std::int64_t rows, std::int64_t columns, bool transposed) {
    return transposed ? Shape{kBatches, columns, rows} : Shape{kBatches, rows, columns};
  };
  const SampleTensor::Layout odd = {.row_padding = 3, .start = 1};
  SampleTensor left(in, shape(kRows, kDepth, left_transposed), odd);
  SampleTensor right(in, shape(kDepth, kColumns, right_transposed), odd);
  SampleTensor bias(out, {kColumns}), y(out, {kBatches, kRows, kColumns}, odd);
  left.fill_normal(1), right.fill_normal(2), bias.fill_normal(3), y.fill_normal(4);
  const SampleTensor before = y;

  cuda::PlainProduct p;
  const auto matrix = [](const ConstTensorView& v, bool transposed) {
    return cuda::PlainProduct::Matrix{v.data, v.strides[transposed ? 2 : 1],
                                      v.strides[transposed ? 1 : 2], v.strides[0]};
  };
  p.left = matrix(left.view(), left_transposed);
  p.right = matrix(right.view(), right_transposed);
  p.bias = {bias.view().data, 0, 1, 0};
  p.out = y.view().data;
  p.out_row = y.view().strides[1];
  p.out_batch = y.view().strides[0];
  p.rows = kRows, p.columns = kColumns, p.depth = kDepth, p.batches = kBatches;
  p.in = in;
  p.out_type = out;
  p.alpha = 0.5f;
  p.accumulate = true;
  ThreadPool pool(1);
  const Stream stream = support::test_stream(pool);
  on_device(
      Device::cuda, [] {}, [&] { cuda::plain_product(p, stream.native); });

  const auto at = [](const SampleTensor& t, std::int64_t b, std::int64_t row, std::int64_t column,
                     bool transposed) {
    const std::int64_t i = transposed ? column : row, j = transposed ? row : column;
    return t[(b * t.shape()[1] + i) * t.shape()[2] + j];
  };
  for (std::int64_t b = 0; b < kBatches; ++b) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kColumns; ++c) {
        double sum = 0;
        for (std::int64_t d = 0; d < kDepth; ++d) {
          sum += at(left, b, r, d, left_transposed) * at(right, b, d, c, right_transposed);
        }
        const double want = 0.5 * sum + at(before, b, r, c, false) + bias[c];
        // 50 terms of magnitudes below 16 in f32, then one rounding.
        const double slack = 54 * 0x1p-24 * 200 + support::rounding(out) * 1.01 * std::abs(want);
        ASSERT_NEAR(at(y, b, r, c, false), want, slack) << b << ", " << r << ", " << c;
      }
    }
  }
  EXPECT_TRUE(y.padding_untouched());
}

INSTANTIATE_TEST_SUITE_P(Types, PlainProductOnGpu,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(DType::f32, DType::bf16), testing::Bool(),
                                          testing::Bool()));

}  // namespace
}  // namespace ballast::ops
