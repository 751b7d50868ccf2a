#include "ops/embedding.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/embedding.h"
#include "tests/support/errors.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::embedding_test {
namespace {

using namespace support;

TEST(EmbeddingRef, GradientMatchesFiniteDifferences) {
  const std::vector<std::int32_t> ids = {2, 0, 2};
  const Doubles dy = normal_values(6, 1), table = normal_values(8, 2);
  const auto loss = [&](const Doubles& t) {
    double sum = 0;
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::size_t c = 0; c < 2; ++c) {
        sum += dy[r * 2 + c] * t[to_size(ids[r]) * 2 + c];
      }
    }
    return sum;
  };
  expect_close(finite_differences(table, loss), ref::embedding_backward(4, 2, ids, dy), 1e-8, "d");
}

TEST(Embedding, TakesRowsAndAddsGradientsForAnyTypesAndThreads) {
  const Index ids = {5, 0, 5, 8, 5, 1};
  for (const std::int64_t width : {1, 17, 301}) {
    for (const DType stored : kParameters) {
      for (const DType out : kActivations) {
        SampleTensor table(stored, {9, width}, kStrided), y(out, {6, width}, kStrided);
        SampleTensor dy = y, dtable(DType::f32, {9, width});
        table.fill_normal(1), dy.fill_normal(2), dtable.fill_normal(3);
        const Doubles before = dtable.values();
        Doubles want_y, want = ref::embedding_backward(9, width, values_of(ids), dy.values());
        for (std::size_t i = 0; i < want.size(); ++i) want[i] += before[i];
        for (const std::int32_t id : ids) {
          for (std::int64_t c = 0; c < width; ++c) want_y.push_back(table[id * width + c]);
        }
        SampleTensor first = dtable;
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          SampleTensor sum = dtable;
          embedding({.table = table.view(), .ids = index_view(ids), .y = y.view()},
                    test_stream(pool));
          embedding_backward({.ids = index_view(ids), .dy = dy.view(), .dtable = sum.view()},
                             test_stream(pool));
          expect_close(y, want_y, 0, "y");
          expect_close(sum, want, 2e-7, "dtable");
          if (threads == 1) first = sum;
          EXPECT_EQ(first.bytes(), sum.bytes());
        }
      }
    }
  }
}

TEST(Embedding, RefusesIdsThatAreNoRows) {
  if (test_device() != Device::cpu) GTEST_SKIP() << "the caller's promise on the GPU";
  ThreadPool pool(1);
  SampleTensor table(DType::f32, {4, 3}), y(DType::f32, {2, 3});
  for (const Index& ids : {Index{0, 4}, Index{-1, 0}}) {
    EXPECT_THROW(embedding({.table = table.view(), .ids = index_view(ids), .y = y.view()},
                           test_stream(pool)),
                 Error);
    EXPECT_THROW(
        embedding_backward({.ids = index_view(ids), .dy = y.view(), .dtable = table.view()},
                           test_stream(pool)),
        Error);
  }
}

}  // namespace
}  // namespace ballast::ops::embedding_test
