// Which random bits 8-bit AdamW rounds a bf16 parameter with.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "core/to_size.h"
#include "ops/adamw_8bit.h"
#include "tests/support/test_device.h"

namespace ballast::ops::adamw_8bit_rounding_test {
namespace {

using support::SampleTensor;

constexpr std::int64_t kSize = 5 * 256 + 77, kBlocks = (kSize + 255) / 256;

// What parameters of a type become of `before` in the first step, without decay.
std::vector<double> updated(DType type, const std::vector<double>& before, std::int64_t start,
                            const ParameterRounding& rounding) {
  ThreadPool pool(2);
  const auto tensor = [&](DType t, std::int64_t n) {
    return SampleTensor(t, {n}, {.start = start});
  };
  SampleTensor p = tensor(type, kSize), g = tensor(DType::bf16, kSize);
  SampleTensor m = tensor(DType::u8, kSize), v = tensor(DType::u8, kSize);
  SampleTensor m_absmax = tensor(DType::f32, kBlocks), v_absmax = tensor(DType::f32, kBlocks);
  for (std::int64_t i = 0; i < kSize; ++i) p.set(i, before[to_size(i)]);
  g.fill_normal(101);
  adamw_8bit({.p = p.view(),
              .m = m.view(),
              .v = v.view(),
              .m_absmax = m_absmax.view(),
              .v_absmax = v_absmax.view(),
              .shift = {},
              .g = g.view(),
              .grad_scale = {},
              .options = {.weight_decay = 0},
              .stabilize = false,
              .step = 1,
              .learning_rate = 3e-3,
              .rounding = rounding},
             support::test_stream(pool));
  return p.values();
}

// Of what an f32 parameter becomes, the upper 16 bits after the half of a random word that belongs
// to the element was added to the lower ones.
TEST(AdamW8bitRounding, TakesHalfAWordForEachElement) {
  SampleTensor start_values(DType::bf16, {kSize});
  start_values.fill_normal(1);
  start_values.set(3, 0x1.fep127);  // the largest: its neighbours are rounded with more care
  start_values.set(300, NAN);
  const std::vector<double> before = start_values.values();
  const RandomSource random = random_source(7, "update", 1, "w");
  for (const std::int64_t start : {0, 1}) {  // on a GPU in eights and one by one
    const std::vector<double> exact = updated(DType::f32, before, start, {});
    for (const std::int64_t first : {0, 8, 4, 1}) {
      const std::vector<double> rounded = updated(
          DType::bf16, before, start,
          {.rounding = UpdateRounding::stochastic, .random = random, .first_element = first});
      for (std::size_t i = 0; i < exact.size(); ++i) {
        if (std::isnan(exact[i])) {
          ASSERT_TRUE(std::isnan(rounded[i])) << i;
          continue;
        }
        const std::uint32_t half = random.half(static_cast<std::uint64_t>(first) + i) >> 16;
        const auto now = std::bit_cast<std::uint32_t>(static_cast<float>(exact[i]));
        const auto want = std::bit_cast<float>((now + half) & 0xffff0000u);
        ASSERT_EQ(rounded[i], want) << start << " " << first << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace ballast::ops::adamw_8bit_rounding_test
