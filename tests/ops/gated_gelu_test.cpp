#include "ops/gated_gelu.h"

#include <gtest/gtest.h>

#include "tests/ref/gated_gelu.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::gated_gelu_test {
namespace {

using namespace support;

TEST(GatedGeluRef, GradientsMatchFiniteDifferences) {
  const double h = 1e-5;
  for (const double a : {-4.0, -0.6, 0.0, 0.3, 5.0}) {
    for (const double b : {-2.0, 0.0, 1.5}) {
      EXPECT_NEAR(ref::gated_gelu_da(a, b),
                  (ref::gated_gelu(a + h, b) - ref::gated_gelu(a - h, b)) / (2 * h), 1e-8);
      EXPECT_NEAR(ref::gated_gelu_db(a),
                  (ref::gated_gelu(a, b + h) - ref::gated_gelu(a, b - h)) / (2 * h), 1e-8);
    }
  }
}

struct Case {
  SampleTensor a, b, dz, z, da, db;

  Case(DType in, DType out, const Shape& shape, const SampleTensor::Layout& layout)
      : a(in, shape, layout), b(a), dz(a), z(out, shape, layout), da(z), db(z) {
    a.fill_normal(1, 2), b.fill_normal(2), dz.fill_normal(3);
  }
  void run(ThreadPool& pool) {
    gated_gelu({.a = a.view(), .b = b.view(), .z = z.view()}, test_stream(pool));
    gated_gelu_backward(
        {.a = a.view(), .b = b.view(), .dz = dz.view(), .da = da.view(), .db = db.view()},
        test_stream(pool));
  }
  void expect_right() const {
    Doubles want_z, want_da, want_db;
    for (std::int64_t i = 0; i < a.size(); ++i) {
      want_z.push_back(ref::gated_gelu(a[i], b[i]));
      want_da.push_back(dz[i] * ref::gated_gelu_da(a[i], b[i]));
      want_db.push_back(dz[i] * ref::gated_gelu_db(a[i]));
    }
    // An exponential good to 2 units in the last place, then a few products.
    expect_close(z, want_z, 6e-7, "z");
    expect_close(da, want_da, 8e-7, "da");
    expect_close(db, want_db, 6e-7, "db");
  }
};

TEST(GatedGelu, MatchesReferenceForAnyTypesAndLayout) {
  ThreadPool pool(2);
  for (const std::int64_t width : {1, 17, 301}) {
    for (const DType in : kActivations) {
      for (const DType out : kActivations) {
        Case c(in, out, {5, width}, kStrided);
        c.run(pool);
        c.expect_right();
      }
    }
  }
  Case aligned(DType::bf16, DType::bf16, {7, 1024}, kAligned);
  aligned.run(pool);
  aligned.expect_right();
  Case none(DType::f32, DType::f32, {0, 8}, {});
  none.run(pool);
}

TEST(GatedGelu, GivesTheSameBitsForAnyThreadCountAndInPlace) {
  for (const DType dtype : kActivations) {
    ThreadPool one(1), three(3);
    Case c(dtype, dtype, {301, 301}, {}), d = c;
    c.run(one);
    gated_gelu({.a = d.a.view(), .b = d.b.view(), .z = d.z.view()}, test_stream(three));
    gated_gelu_backward(
        {.a = d.a.view(), .b = d.b.view(), .dz = d.dz.view(), .da = d.a.view(), .db = d.b.view()},
        test_stream(three));
    EXPECT_EQ(c.z.bytes(), d.z.bytes());
    EXPECT_EQ(c.da.bytes(), d.a.bytes());
    EXPECT_EQ(c.db.bytes(), d.b.bytes());
  }
}

TEST(GatedGelu, RefusesShapesThatDiffer) {
  ThreadPool pool(1);
  SampleTensor a(DType::f32, {4, 3}), b(DType::f32, {3, 4});
  EXPECT_THROW(gated_gelu({.a = a.view(), .b = b.view(), .z = a.view()}, test_stream(pool)), Error);
}

TEST(GatedGelu, IsRecordedWithItsOperands) {
  RecordedProgram p;
  Case c(DType::f32, DType::f32, {3, 24}, {});
  const Buffer a = p.input("a", c.a), b = p.input("b", c.b), dz = p.input("dz", c.dz);
  const Buffer z = p.pb.temp("z", {3, 24}, DType::f32);
  const Buffer da = p.pb.temp("da", {3, 24}, DType::f32), db = p.pb.temp("db", {3, 24}, DType::f32);
  gated_gelu_into(p.pb, a, b, z);
  gated_gelu_backward_into(p.pb, a, b, dz, da, db);
  EXPECT_EQ(p.instruction(1).reads, (std::vector{a, b, dz}));
  EXPECT_EQ(p.instruction(1).writes, (std::vector{da, db}));
  p.run();
  c.z = p.value(z), c.da = p.value(da), c.db = p.value(db);
  c.expect_right();
}

}  // namespace
}  // namespace ballast::ops::gated_gelu_test
