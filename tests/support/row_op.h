#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/thread_pool.h"
#include "core/to_size.h"
#include "tests/support/finite_differences.h"
#include "tests/support/sample_tensor.h"

// What the tests of row-wise operations share.
namespace ballast::support {

using Doubles = std::vector<double>;
using Index = DeviceVector<std::int32_t>;

inline constexpr std::int64_t kWidths[] = {1, 3, 17, 96, 301, 1536};
inline constexpr DType kActivations[] = {DType::f32, DType::bf16};
inline constexpr DType kParameters[] = {DType::f32, DType::bf16, DType::f16};
// Rows apart and a start that no vector is aligned to.
inline constexpr SampleTensor::Layout kStrided = {.row_padding = 5, .start = 3};
// The widths that a GPU holds in the registers of a block, in bf16 and aligned to 16 bytes.
inline constexpr std::int64_t kRegisterWidths[] = {1536, 3072, 5120};
inline constexpr SampleTensor::Layout kAligned = {.row_padding = 64, .start = 8};

inline std::vector<std::int32_t> values_of(const Index& index) {
  return {index.begin(), index.end()};
}
inline ConstTensorView index_view(const Index& index) {
  return {reinterpret_cast<const std::byte*>(index.data()), DType::i32,
          Shape{static_cast<std::int64_t>(index.size())}, test_device()};
}

inline Doubles normal_values(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Doubles v(n);
  for (double& x : v) x = normal(random);
  return v;
}

inline double largest(const Doubles& v) {
  double most = 0;
  for (const double x : v) most = std::max(most, std::abs(x));
  return most;
}

// Every element within tolerance times the largest one, plus one rounding to the result's dtype.
inline void expect_close(const SampleTensor& got, const Doubles& want, double tolerance,
                         const char* what) {
  ASSERT_EQ(got.size(), static_cast<std::int64_t>(want.size())) << what;
  const double absolute = tolerance * largest(want);
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const double w = want[to_size(i)];
    const double allowed = absolute + rounding(got.dtype()) * std::abs(w);
    ASSERT_NEAR(got[i], w, allowed) << what << " element " << i << " of " << to_string(got.shape());
  }
  EXPECT_TRUE(got.padding_untouched()) << what;
}

inline void expect_close(const Doubles& got, const Doubles& want, double tolerance,
                         const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * largest(want)) << what << " element " << i;
  }
}

// Central differences of loss(values) at x; in f64 their error is about 1e-9 of the values.
template <class Loss>
Doubles finite_differences(Doubles x, Loss loss) {
  constexpr double h = 1e-5;
  Doubles slope(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + h;
    const double above = loss(x);
    x[i] = at - h;
    slope[i] = (above - loss(x)) / (2 * h);
    x[i] = at;
  }
  return slope;
}

}  // namespace ballast::support
