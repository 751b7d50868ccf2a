#include "ops/rope_3d.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/to_size.h"
#include "tests/ref/rope_3d.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::rope_3d_test {
namespace {

using namespace support;
using Grid = std::array<std::int64_t, 3>;

SampleTensor table_of(Grid grid, std::int64_t head_width, std::int64_t first, std::int64_t rows,
                      int threads = 1) {
  ThreadPool pool(threads);
  SampleTensor table(DType::f32, {rows, head_width / 2, 2});
  rope_3d_table({.grid = grid, .first_token = first, .table = table.view()},
                support::test_stream(pool));
  return table;
}
SampleTensor table_of(Grid grid, std::int64_t head_width, int threads = 1) {
  return table_of(grid, head_width, 0, grid[0] * grid[1] * grid[2], threads);
}

TEST(Rope3dRef, InverseIsTheTransposeOfTheRotation) {
  const Doubles table = ref::rope_3d_table({2, 2, 3}, 10);
  const Doubles x = normal_values(12 * 2 * 10, 1), dy = normal_values(12 * 2 * 10, 2);
  const auto loss = [&](const Doubles& v) { return dot(dy, ref::rope_3d(v, 2, 10, table, false)); };
  expect_close(ref::rope_3d(dy, 2, 10, table, true), finite_differences(x, loss), 1e-8, "dx");
}

// theta of frame 5 and of row 7 in a head of 128: the published model's numbers.
TEST(Rope3dTable, HasThePublishedAngles) {
  const SampleTensor table = table_of({6, 8, 1}, 128);
  const std::int64_t token = 5 * 8 + 7;
  const std::pair<int, double> angles[] = {{0, 5},  {1, 3.28966612},  {21, 7.59955541e-4},
                                           {22, 7}, {23, 4.51462674}, {42, 1.08536105e-3},
                                           {43, 0}, {63, 0}};
  for (const auto& [pair, angle] : angles) {
    EXPECT_NEAR(table[token * 128 + 2 * pair], std::cos(angle), 6e-8) << pair;
    EXPECT_NEAR(table[token * 128 + 2 * pair + 1], std::sin(angle), 6e-8) << pair;
  }
}

TEST(Rope3dTable, IsTheReferenceRoundedOnce) {
  for (const std::int64_t width : {2, 4, 6, 10, 32, 40, 48, 128}) {
    for (const Grid grid : {Grid{1, 1, 1}, Grid{3, 4, 3}, Grid{2, 1, 5}, Grid{21, 30, 52}}) {
      const SampleTensor table = table_of(grid, width, 2);
      const Doubles want = ref::rope_3d_table(grid, width);
      ASSERT_EQ(table.size(), static_cast<std::int64_t>(want.size()));
      for (std::int64_t i = 0; i < table.size(); ++i) {  // the last place of f64 angles may differ
        ASSERT_NEAR(table[i], want[to_size(i)], 6e-8) << i << " of " << width;
      }
    }
  }
}

TEST(Rope3dTable, HoldsTheLastPositionOfAnAxisOf1024) {
  const SampleTensor table = table_of({1, 1, 1024}, 6, 1023, 1);
  EXPECT_NEAR(table[4], std::cos(1023.0), 6e-8);
  EXPECT_NEAR(table[5], std::sin(1023.0), 6e-8);
}

TEST(Rope3dTable, GivesTheSameBitsForAnyThreadCountAndAnyPart) {
  const Grid grid = {5, 30, 52};
  const SampleTensor whole = table_of(grid, 40);
  EXPECT_EQ(whole.bytes(), table_of(grid, 40, 3).bytes());
  for (const auto& [first, rows] : {std::pair{0, 256}, {256, 512}, {4096, 3704}, {7799, 1}}) {
    const SampleTensor part = table_of(grid, 40, first, rows, 2);
    const SampleTensor& all = whole;
    device_memory_is_read();
    EXPECT_EQ(std::memcmp(part.view().data, all.view().rows(first, rows).data, part.view().bytes()),
              0)
        << first;
  }
}

TEST(Rope3dTable, RefusesAnAxisBeyond1024AndRowsBeyondTheGrid) {
  try {
    table_of({1, 1, 1025}, 4, 0, 1);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::input);
    EXPECT_THAT(e.what(), testing::HasSubstr("1 x 1 x 1025"));
  }
  EXPECT_THROW(table_of({2, 2, 2}, 4, 7, 2), Error);
}

// A tensor [L, H, D] whose tokens lie `gap` elements further apart than they need: q inside qkv.
struct Heads {
  SampleTensor memory;
  std::int64_t tokens, heads, width, gap;

  Heads(DType dtype, std::int64_t tokens, std::int64_t heads, std::int64_t width, std::int64_t gap,
        std::int64_t start = 3)
      : memory(dtype, {tokens, heads * width}, {.row_padding = gap, .start = start}),
        tokens(tokens),
        heads(heads),
        width(width),
        gap(gap) {}
  TensorView view() {
    return {memory.view().data,
            memory.dtype(),
            {tokens, heads, width},
            {heads * width + gap, width, 1},
            test_device()};
  }
};

TEST(Rope3d, MatchesReferenceForAnyTypesAndLayout) {
  ThreadPool pool(2);
  for (const std::int64_t width : {2, 6, 34, 48, 128, 300}) {
    for (const DType in : kActivations) {
      for (const DType out : kActivations) {
        for (const bool inverse : {false, true}) {
          const SampleTensor table = table_of({2, 3, 2}, width);
          Heads x(in, 12, 3, width, 5), y(out, 12, 3, width, 11);
          x.memory.fill_normal(1);
          rope_3d({.x = x.view(), .table = table.view(), .y = y.view(), .inverse = inverse},
                  support::test_stream(pool));
          const Doubles want =
              ref::rope_3d(x.memory.values(), 3, to_size(width), table.values(), inverse);
          expect_close(y.memory, want, 1.2e-7, "y");  // two products and a sum
        }
      }
    }
  }
}

TEST(Rope3d, MatchesReferenceWhereEverythingIsAligned) {
  ThreadPool pool(2);
  for (const std::int64_t width : {8, 32, 64, 128, 24, 2048}) {
    for (const std::int64_t heads : {1, 3, 24, 43}) {
      const std::int64_t frames = heads == 24 && width == 8 ? 200 : 2;
      const SampleTensor table = table_of({frames, 3, 2}, width);
      Heads x(DType::bf16, frames * 6, heads, width, 16, 8);
      Heads y(DType::bf16, frames * 6, heads, width, 8, 8);
      x.memory.fill_normal(1);
      for (const bool inverse : {false, true}) {
        rope_3d({.x = x.view(), .table = table.view(), .y = y.view(), .inverse = inverse},
                support::test_stream(pool));
        const Doubles want = ref::rope_3d(x.memory.values(), to_size(heads), to_size(width),
                                          table.values(), inverse);
        expect_close(y.memory, want, 1.2e-7, "y");
      }
    }
  }
}

TEST(Rope3d, TurnsHeadsThatLieAcrossTheTokens) {  // [L, H, D] seen in memory [H, L, D]
  ThreadPool pool(1);
  const SampleTensor table = table_of({1, 2, 2}, 6);
  SampleTensor across(DType::f32, {3, 4, 6}), along(DType::f32, {4, 3, 6});
  along.fill_normal(1);
  const TensorView seen(across.view().data, DType::f32, {4, 3, 6}, {6, 24, 1}, test_device());
  rope_3d({.x = along.view(), .table = table.view(), .y = seen}, support::test_stream(pool));
  rope_3d({.x = along.view(), .table = table.view(), .y = along.view()},
          support::test_stream(pool));
  for (std::int64_t l = 0; l < 4; ++l) {
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t d = 0; d < 6; ++d) {
        EXPECT_EQ(across[(h * 4 + l) * 6 + d], along[(l * 3 + h) * 6 + d]);
      }
    }
  }
}

TEST(Rope3d, InverseBringsBackWhatWasTurned) {
  ThreadPool pool(1);
  const SampleTensor table = table_of({3, 3, 3}, 32);
  SampleTensor x(DType::f32, {27, 2, 32});
  x.fill_normal(1);
  const Doubles before = x.values();
  rope_3d({.x = x.view(), .table = table.view(), .y = x.view()}, support::test_stream(pool));
  EXPECT_GT(std::abs(x[26 * 64] - before[26 * 64]), 1e-3);
  rope_3d({.x = x.view(), .table = table.view(), .y = x.view(), .inverse = true},
          support::test_stream(pool));
  expect_close(x, before, 3e-7, "x");  // two rotations, and cos^2 + sin^2 of rounded entries
}

TEST(Rope3d, GivesTheSameBitsForAnyThreadCountChunkingAndInPlace) {
  const SampleTensor table = table_of({4, 10, 15}, 34);
  for (const DType dtype : kActivations) {
    SampleTensor x(dtype, {600, 3, 34});
    x.fill_normal(1);
    const auto run = [&](int threads, const std::vector<std::int64_t>& cuts, bool in_place) {
      ThreadPool pool(threads);
      SampleTensor y = x;
      std::int64_t begin = 0;
      for (const std::int64_t n : cuts) {
        const TensorView part = y.view().rows(begin, n);
        rope_3d({.x = in_place ? ConstTensorView(part) : x.view().rows(begin, n),
                 .table = table.view().rows(begin, n),
                 .y = part},
                support::test_stream(pool));
        begin += n;
      }
      return y;
    };
    const SampleTensor whole = run(1, {600}, false);
    EXPECT_EQ(whole.bytes(), run(2, {600}, false).bytes());
    EXPECT_EQ(whole.bytes(), run(3, {600}, true).bytes());
    EXPECT_EQ(whole.bytes(), run(3, {256, 344}, true).bytes());
    EXPECT_EQ(whole.bytes(), run(2, {256, 256, 88}, false).bytes());
  }
}

TEST(Rope3d, AcceptsNoTokensAndRefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  const Stream stream = support::test_stream(pool);
  SampleTensor none(DType::f32, {0, 2, 8}), no_table(DType::f32, {0, 4, 2});
  rope_3d({.x = none.view(), .table = no_table.view(), .y = none.view()}, stream);
  SampleTensor x(DType::f32, {2, 2, 8}), odd(DType::f32, {2, 2, 7}), table(DType::f32, {2, 4, 2});
  SampleTensor short_table(DType::f32, {1, 4, 2});
  EXPECT_THROW(rope_3d({.x = odd.view(), .table = table.view(), .y = odd.view()}, stream), Error);
  EXPECT_THROW(rope_3d({.x = x.view(), .table = short_table.view(), .y = x.view()}, stream), Error);
}

TEST(Rope3d, RecordsItsTable) {
  RecordedProgram p;
  const Buffer table = rope_3d_table(p.pb, {1, 2, 3}, 8);
  const Buffer half = p.pb.temp("half", {3, 4, 2}, DType::f32);
  rope_3d_table_into(p.pb, {1, 2, 3}, half, 3);
  EXPECT_EQ(p.instruction(0).writes, std::vector{table});
  p.run();
  EXPECT_EQ(p.value(table).shape(), (Shape{6, 4, 2}));
  EXPECT_EQ(p.value(half)[0], p.value(table)[3 * 8]);
  EXPECT_EQ(p.value(half)[23], p.value(table)[47]);
  EXPECT_THROW(rope_3d_table(p.pb, {1025, 1, 1}, 8), Error);
}

}  // namespace
}  // namespace ballast::ops::rope_3d_test
