#include "core/non_finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/convert.h"
#include "core/dtype.h"

namespace ballast {
namespace {

constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinite = std::numeric_limits<float>::infinity();

std::vector<std::byte> stored(const std::vector<float>& values, DType dtype, std::size_t shift) {
  std::vector<std::byte> bytes(shift + values.size() * size_of(dtype));
  convert(values.data(), DType::f32, bytes.data() + shift, dtype, std::ssize(values));
  return bytes;
}

TEST(FirstNonFinite, IsFoundAtEveryPlaceAndAddress) {
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2}) {
    for (const std::size_t place : {0, 1, 63, 4095, 4096, 9999}) {
      std::vector<float> values(10'000, 1.5f);
      EXPECT_FALSE(first_non_finite(stored(values, dtype, 0), dtype)) << name_of(dtype);
      values[place] = kNotANumber;
      values[9999] = kNotANumber;
      const auto bytes = stored(values, dtype, 3);
      EXPECT_EQ(first_non_finite(std::span(bytes).subspan(3), dtype),
                static_cast<std::int64_t>(place))
          << name_of(dtype);
    }
  }
}

TEST(FirstNonFinite, TakesTheLargestNumbersAndNotInfinity) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2}) {
    const std::vector<float> values = {largest(dtype), -largest(dtype), 0, -0.0f};
    EXPECT_FALSE(first_non_finite(stored(values, dtype, 0), dtype)) << name_of(dtype);
    if (dtype == DType::f8_e4m3) continue;  // has no infinity
    EXPECT_EQ(first_non_finite(stored({1, -kInfinite}, dtype, 0), dtype), 1) << name_of(dtype);
  }
}

TEST(FirstNonFinite, IntegersAreAlwaysNumbers) {
  const std::vector<std::byte> ones(64, std::byte{0xff});
  for (const DType dtype : {DType::i8, DType::u8, DType::i32, DType::u64, DType::boolean}) {
    EXPECT_FALSE(first_non_finite(ones, dtype)) << name_of(dtype);
  }
}

}  // namespace
}  // namespace ballast
