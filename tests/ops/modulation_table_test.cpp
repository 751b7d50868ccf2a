#include "ops/modulation_table.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/modulation_table.h"
#include "tests/support/finite_differences.h"
#include "tests/support/recorded_program.h"
#include "tests/support/test_device.h"

namespace ballast::ops::modulation_table_test {
namespace {

using support::RecordedProgram;
using support::SampleTensor;

std::int64_t i64(std::size_t n) { return static_cast<std::int64_t>(n); }
Shape table_shape(const ref::ModulationSize& s) {
  return {i64(s.rows), i64(s.timesteps), i64(s.width)};
}
Shape e_shape(const ref::ModulationSize& s) {
  return {i64(s.timesteps), i64(s.width * (s.shared_e ? 1 : s.rows))};
}

constexpr ref::ModulationSize kSizes[] = {{6, 1, 96},         {6, 2, 1030},      {2, 3, 33, true},
                                          {2, 1, 2500, true}, {1, 4, 1},         {3, 0, 7},
                                          {6, 2, 0},          {6, 3, 17, false}, {2, 0, 7, true}};

TEST(ModulationTableRef, BackwardMatchesFiniteDifferences) {
  for (const bool shared : {false, true}) {
    const ref::ModulationSize s = {3, 2, 4, shared};
    const SampleTensor modulation = SampleTensor(DType::f64, {12}).fill_normal(1);
    const SampleTensor e = SampleTensor(DType::f64, {i64(s.e_elements())}).fill_normal(2);
    const SampleTensor dm = SampleTensor(DType::f64, {24}).fill_normal(3);
    const ref::ModulationTableGrads g = ref::modulation_table_backward(s, dm.values());
    const auto of_e = [&](const std::vector<double>& at) {
      return support::dot(ref::modulation_table(s, modulation.values(), at), dm.values());
    };
    const auto of_modulation = [&](const std::vector<double>& at) {
      return support::dot(ref::modulation_table(s, at, e.values()), dm.values());
    };
    const std::vector<double> de = support::numeric_gradient(of_e, e.values());
    const std::vector<double> dmod = support::numeric_gradient(of_modulation, modulation.values());
    for (std::size_t i = 0; i < de.size(); ++i) EXPECT_NEAR(g.de[i], de[i], 1e-9);
    for (std::size_t i = 0; i < dmod.size(); ++i) EXPECT_NEAR(g.dmodulation[i], dmod[i], 1e-9);
  }
}

class ModulationTableOnCpu : public testing::TestWithParam<std::tuple<ref::ModulationSize, DType>> {
};

TEST_P(ModulationTableOnCpu, ForwardMatchesReference) {
  const auto [s, dtype] = GetParam();
  ThreadPool pool(2);
  SampleTensor modulation(dtype, {1, i64(s.rows), i64(s.width)}, {.start = 1});
  SampleTensor e(DType::f32, e_shape(s), {.start = 3}), m(DType::f32, table_shape(s), {.start = 1});
  modulation.fill_normal(1);
  e.fill_normal(2);
  modulation_table(
      {.modulation = modulation.view(), .e = e.view(), .m = m.view(), .shared_e = s.shared_e},
      support::test_stream(pool));
  const std::vector<double> want = ref::modulation_table(s, modulation.values(), e.values());
  for (std::int64_t i = 0; i < m.size(); ++i) {
    EXPECT_EQ(m[i], static_cast<float>(want[to_size(i)])) << i;  // one addition
  }
  EXPECT_TRUE(m.padding_untouched());
}

INSTANTIATE_TEST_SUITE_P(Sizes, ModulationTableOnCpu,
                         testing::Combine(testing::ValuesIn(kSizes),
                                          testing::Values(DType::f32, DType::bf16, DType::f16)));

TEST(ModulationTableGradients, AddsToBothGradients) {
  for (const ref::ModulationSize& s : kSizes) {
    ThreadPool pool(2);
    SampleTensor dm(DType::f32, table_shape(s)), de(DType::f32, e_shape(s), {.start = 1});
    SampleTensor dmodulation(DType::f32, {i64(s.rows), i64(s.width)}, {.start = 3});
    dm.fill_normal(1);
    de.fill_normal(2);
    dmodulation.fill_normal(3);
    const SampleTensor de_before = de, dmodulation_before = dmodulation;
    modulation_table_backward({.dm = dm.view(),
                               .de = de.view(),
                               .dmodulation = dmodulation.view(),
                               .shared_e = s.shared_e},
                              support::test_stream(pool));
    const ref::ModulationTableGrads g = ref::modulation_table_backward(s, dm.values());
    // At most four additions of numbers below 8.
    for (std::int64_t i = 0; i < de.size(); ++i) {
      EXPECT_NEAR(de[i], de_before[i] + g.de[to_size(i)], 4 * 0x1p-21);
    }
    for (std::int64_t i = 0; i < dmodulation.size(); ++i) {
      EXPECT_NEAR(dmodulation[i], dmodulation_before[i] + g.dmodulation[to_size(i)], 4 * 0x1p-21);
    }
    EXPECT_TRUE(de.padding_untouched() && dmodulation.padding_untouched());

    SampleTensor only_de = de_before, only_dmodulation = dmodulation_before;
    modulation_table_backward(
        {.dm = dm.view(), .de = only_de.view(), .dmodulation = {}, .shared_e = s.shared_e},
        support::test_stream(pool));
    modulation_table_backward(
        {.dm = dm.view(), .de = {}, .dmodulation = only_dmodulation.view(), .shared_e = s.shared_e},
        support::test_stream(pool));
    EXPECT_EQ(only_de.bytes(), de.bytes());
    EXPECT_EQ(only_dmodulation.bytes(), dmodulation.bytes());
  }
}

TEST(ModulationTableBits, DependNeitherOnThreadsNorOnTimestepsPerCall) {
  support::DeviceVector<std::byte> want_de, want_dmodulation;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    SampleTensor dm(DType::f32, {6, 3, 3001}), de(DType::f32, {3, 6 * 3001});
    SampleTensor dmodulation(DType::f32, {6, 3001}), one_by_one(DType::f32, {6, 3001});
    dm.fill_normal(1);
    modulation_table_backward({.dm = dm.view(), .de = de.view(), .dmodulation = dmodulation.view()},
                              support::test_stream(pool));
    if (threads == 1) {
      want_de = de.bytes();
      want_dmodulation = dmodulation.bytes();
    }
    EXPECT_TRUE(de.bytes() == want_de && dmodulation.bytes() == want_dmodulation);
    for (std::int64_t t = 0; t < 3; ++t) {
      SampleTensor row(DType::f32, {6, 1, 3001});
      for (std::int64_t i = 0; i < row.size(); ++i) {
        row.set(i, dm[(i / 3001 * 3 + t) * 3001 + i % 3001]);
      }
      modulation_table_backward({.dm = row.view(), .de = {}, .dmodulation = one_by_one.view()},
                                support::test_stream(pool));
    }
    EXPECT_TRUE(one_by_one.bytes() == want_dmodulation);
  }
}

TEST(ModulationTableChecks, RefuseWhatDoesNotFit) {
  ThreadPool pool(1);
  SampleTensor modulation(DType::f32, {6, 8}), e(DType::f32, {2, 48}), m(DType::f32, {6, 2, 8});
  SampleTensor shared(DType::f32, {2, 8}), wide(DType::f64, {6, 8});
  const auto run = [&](SampleTensor& mod, SampleTensor& from, bool shared_e) {
    modulation_table(
        {.modulation = mod.view(), .e = from.view(), .m = m.view(), .shared_e = shared_e},
        support::test_stream(pool));
  };
  EXPECT_NO_THROW(run(modulation, e, false));
  EXPECT_NO_THROW(run(modulation, shared, true));
  EXPECT_THROW(run(modulation, e, true), Error);
  EXPECT_THROW(run(modulation, shared, false), Error);
  EXPECT_THROW(run(wide, e, false), Error);
  EXPECT_THROW(run(shared, e, false), Error);
}

TEST(ModulationTableRecorded, HasTheTableShapeAndAddsInBackward) {
  const SampleTensor w = SampleTensor(DType::bf16, {1, 2, 5}).fill_normal(1);
  const SampleTensor rows = SampleTensor(DType::f32, {3, 5}).fill_normal(2);
  const SampleTensor start = SampleTensor(DType::f32, {3, 5}).fill_normal(3);
  RecordedProgram p;
  const Buffer modulation = p.input("modulation", w), e = p.input("e", rows);
  const Buffer de = p.input("de", start);
  const Buffer m = modulation_table(p.pb, modulation, e, 2, true);
  modulation_table_backward(p.pb, m, true, de, {});
  EXPECT_EQ(p.pb.shape(m), (Shape{2, 3, 5}));
  EXPECT_EQ(p.instruction(0).reads, (std::vector{modulation, e}));
  EXPECT_EQ(p.instruction(1).reads, (std::vector{m, de}));
  EXPECT_EQ(p.instruction(1).writes, std::vector{de});
  p.run();
  const ref::ModulationSize s = {2, 3, 5, true};
  const std::vector<double> want = ref::modulation_table(s, w.values(), rows.values());
  const ref::ModulationTableGrads g = ref::modulation_table_backward(s, want);
  const SampleTensor got = p.value(m), got_de = p.value(de);
  for (std::int64_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[to_size(i)], 1e-6);
  }
  for (std::int64_t i = 0; i < got_de.size(); ++i) {
    EXPECT_NEAR(got_de[i], start[i] + g.de[to_size(i)], 2e-6);
  }
}

}  // namespace
}  // namespace ballast::ops::modulation_table_test
