#include "core/non_finite.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "core/convert.h"

namespace ballast::non_finite_test {
namespace {

TEST(NonFinite, IsFoundAtAnyElementOfAnyFloatType) {
  constexpr std::int64_t kCount = 9001;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    std::vector<float> values(kCount);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = (i % 2 == 0 ? 1.0f : -1.0f) * static_cast<float>(i) * 7.25f;
    }
    values[3] = 65'504;  // the largest of f16
    const std::size_t size = size_of(dtype);
    std::vector<std::byte> bytes(kCount * size + 1);
    std::byte* const data = bytes.data() + 1;  // not aligned
    convert(values.data(), DType::f32, data, dtype, kCount, Rounding::saturating);
    EXPECT_FALSE(first_non_finite(data, dtype, kCount)) << name_of(dtype);
    for (const std::int64_t at :
         {std::int64_t{0}, std::int64_t{4095}, std::int64_t{4096}, kCount - 1}) {
      for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<std::byte> kept(data + at * static_cast<std::int64_t>(size),
                                    data + (at + 1) * static_cast<std::int64_t>(size));
        convert(&bad, DType::f32, data + at * static_cast<std::int64_t>(size), dtype, 1);
        EXPECT_EQ(first_non_finite(data, dtype, kCount), at) << name_of(dtype) << ' ' << bad;
        EXPECT_FALSE(first_non_finite(data, dtype, at));
        std::memcpy(data + at * static_cast<std::int64_t>(size), kept.data(), size);
      }
    }
  }
  const std::vector<std::byte> ones(64, std::byte{0xff});
  EXPECT_FALSE(first_non_finite(ones.data(), DType::u8, 64));
  EXPECT_EQ(first_non_finite(ones.data(), DType::f32, 16), 0);
}

}  // namespace
}  // namespace ballast::non_finite_test
