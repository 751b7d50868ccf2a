#include "ops/space_to_depth.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/space_to_depth.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::space_to_depth_test {
namespace {

using namespace support;

struct Case {
  Shape wide, folded;
  BlockShape block;
};
std::vector<Case> cases() {
  return {{{2, 4, 6, 5}, {2, 2, 3, 5}, {.space = 2}},                        // mean of 2x2
          {{5, 4, 2, 3}, {3, 2, 1, 6}, {.time = 2, .space = 2, .lead = 1}},  // time into channels
          {{5, 4, 2, 3}, {3, 2, 1, 3}, {.time = 2, .space = 2, .lead = 1}},
          {{2, 4, 2, 3}, {2, 2, 1, 6}, {.space = 2}},
          {{1, 6, 4, 3}, {1, 3, 2, 12}, {.space = 2, .columns_first = true}},
          {{4, 2, 2, 8}, {2, 2, 2, 16}, {.time = 2}}};
}

// A fold and its unfold are each other's transpose: <fold x, y> = <x, unfold y>.
TEST(FoldBlocksRef, UnfoldIsTheGradientOfFold) {
  for (const Case& c : cases()) {
    const Doubles x = normal_values(to_size(c.wide.elements()), 1);
    const Doubles y = normal_values(to_size(c.folded.elements()), 2);
    const auto loss = [&](const Doubles& v) {
      const Doubles folded = ref::space_to_depth(c.wide, c.folded, c.block, v, 0.25);
      double sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += folded[i] * y[i];
      return sum;
    };
    expect_close(ref::depth_to_space(c.wide, c.folded, c.block, y, 0.25),
                 finite_differences(x, loss), 1e-8, "dx");
  }
}

// Pixels in the order of the Wan2.2 VAE: colour, column, row.
TEST(FoldBlocksRef, ColumnsFirstPutsTheRowOffsetLast) {
  Doubles pixels(12);
  for (std::size_t i = 0; i < 12; ++i) pixels[i] = static_cast<double>(i);
  const Doubles folded = ref::space_to_depth({1, 2, 2, 3}, {1, 1, 1, 12},
                                             {.space = 2, .columns_first = true}, pixels, 1);
  EXPECT_EQ(folded[1], 6);  // row 1, column 0, colour 0
  EXPECT_EQ(folded[2], 3);  // row 0, column 1
}

TEST(SpaceToDepth, MatchesReferenceBothWays) {
  ThreadPool pool(2);
  for (const Case& c : cases()) {
    for (const DType t : kActivations) {
      SampleTensor wide(t, c.wide), folded(t, c.folded), to_folded(t, c.folded), to_wide(t, c.wide);
      wide.fill_normal(1);
      folded.fill_normal(2);
      space_to_depth(
          {.wide = wide.view(), .folded = to_folded.view(), .block = c.block, .scale = 0.25f},
          test_stream(pool));
      depth_to_space({.folded = folded.view(), .wide = to_wide.view(), .block = c.block},
                     test_stream(pool));
      expect_close(to_folded, ref::space_to_depth(c.wide, c.folded, c.block, wide.values(), 0.25),
                   1e-6, "folded");
      expect_close(to_wide, ref::depth_to_space(c.wide, c.folded, c.block, folded.values(), 1),
                   1e-6, "wide");
    }
  }
}

TEST(SpaceToDepth, IsRecordedAndAddsToWhatIsThere) {
  const Case c = cases()[1];
  RecordedProgram p;
  SampleTensor wide(DType::f32, c.wide), folded(DType::f32, c.folded);
  wide.fill_normal(1);
  folded.fill_normal(2);
  const Buffer bw = p.input("wide", wide), bf = p.input("folded", folded);
  space_to_depth_into(p.pb, bw, bf, {.block = c.block, .scale = 0.5f, .accumulate = true});
  EXPECT_EQ(p.instruction(0).reads, (std::vector{bw, bf}));
  p.run();
  Doubles want = ref::space_to_depth(c.wide, c.folded, c.block, wide.values(), 0.5);
  for (std::int64_t i = 0; i < folded.size(); ++i) want[to_size(i)] += folded[i];
  expect_close(p.value(bf), want, 1e-6, "folded");
}

TEST(SpaceToDepth, RefusesShapesThatDoNotFold) {
  ThreadPool pool(1);
  SampleTensor wide(DType::f32, {4, 4, 4, 3}), folded(DType::f32, {3, 2, 2, 6});
  EXPECT_THROW(space_to_depth({.wide = wide.view(), .folded = folded.view(), .block = {.space = 2}},
                              test_stream(pool)),
               Error);
}

}  // namespace
}  // namespace ballast::ops::space_to_depth_test
