#include <gtest/gtest.h>

#include "core/error.h"
#include "plan/program_builder.h"

namespace ballast {
namespace {

TEST(Slice, CutsAnyDimensionAndKeepsTheStrides) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.temp("x", {10, 6, 4}, DType::bf16);
  const Buffer heads = pb.slice(x, 1, 2, 3);
  EXPECT_EQ(pb.shape(heads), Shape({10, 3, 4}));
  EXPECT_EQ(set.spec(heads).strides, Shape({24, 4, 1}));
  EXPECT_EQ(set.spec(heads).offset, 2u * 4 * 2);
  EXPECT_EQ(set.spec(heads).bytes, (9u * 24 + 2 * 4 + 4) * 2);
  EXPECT_EQ(set.spec(heads).root, x);

  const Buffer inner = pb.rows(pb.slice(heads, -2, 1, 1), 5, 5);
  EXPECT_EQ(pb.shape(inner), Shape({5, 1, 4}));
  EXPECT_EQ(set.spec(inner).offset, (5u * 24 + 3 * 4) * 2);
}

TEST(Slice, RowsAndColumnsAreItsFirstAndLast) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.temp("x", {10, 6, 4}, DType::f32);
  const Buffer rows = pb.rows(x, 3, 2), columns = pb.columns(x, 1, 2);
  EXPECT_EQ(pb.shape(rows), Shape({2, 6, 4}));
  EXPECT_EQ(set.spec(rows).offset, 3u * 24 * 4);
  EXPECT_EQ(pb.shape(columns), Shape({10, 6, 2}));
  EXPECT_EQ(set.spec(columns).offset, 4u);
}

TEST(Slice, OfEverythingIsTheBufferItself) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.temp("x", {10, 6}, DType::f32);
  EXPECT_EQ(pb.slice(x, 1, 0, 6), x);
  EXPECT_EQ(set.buffers.size(), 1u);
}

TEST(Slice, RefusesWhatIsNotThere) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.temp("x", {10, 6}, DType::f32);
  EXPECT_THROW(pb.slice(x, 2, 0, 1), Error);
  EXPECT_THROW(pb.slice(x, -3, 0, 1), Error);
  EXPECT_THROW(pb.slice(x, 1, 4, 3), Error);
  EXPECT_THROW(pb.slice(x, 0, -1, 3), Error);
}

}  // namespace
}  // namespace ballast
