#include "ops/cross_entropy.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "tests/ref/cross_entropy.h"
#include "tests/support/errors.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::cross_entropy_test {
namespace {

using namespace support;

TEST(CrossEntropyRef, GradientMatchesFiniteDifferences) {
  const Doubles x = normal_values(7, 1);
  for (const std::size_t label : {0, 3, 6}) {
    const auto loss = [&](const Doubles& at) { return ref::cross_entropy(at, label); };
    expect_close(finite_differences(x, loss), ref::cross_entropy_dx(x, label), 1e-8, "dx");
  }
}

struct Case {
  SampleTensor x, losses, dx, weight = SampleTensor(DType::f32, {1});
  Index labels;

  Case(DType in, DType out, std::int64_t classes, const SampleTensor::Layout& layout)
      : x(in, {5, classes}, layout),
        losses(DType::f32, {5}),
        dx(out, {5, classes}, layout),
        labels({0, static_cast<std::int32_t>(classes - 1), -100,
                static_cast<std::int32_t>(classes / 2), -1}) {
    x.fill_normal(1, 3);
    weight.set(0, 0.25);
  }
  void run(ThreadPool& pool, bool in_place = false) {
    cross_entropy({.x = x.view(),
                   .labels = index_view(labels),
                   .weight = weight.view(),
                   .losses = losses.view(),
                   .dx = in_place ? x.view() : dx.view()},
                  test_stream(pool));
  }
  void expect_right(const Doubles& logits) const {
    Doubles want_losses(5), want(logits.size());
    const auto classes = to_size(x.shape()[1]);
    for (std::size_t r = 0; r < 5; ++r) {
      const std::int32_t label = values_of(labels)[r];
      if (label < 0) continue;
      const std::span row(logits.data() + r * classes, classes);
      want_losses[r] = ref::cross_entropy(row, to_size(label));
      const Doubles d = ref::cross_entropy_dx(row, to_size(label));
      for (std::size_t c = 0; c < classes; ++c) want[r * classes + c] = 0.25 * d[c];
    }
    // Rounding of scores of size 10 in the exponent.
    expect_close(losses, want_losses, 1e-6, "losses");
    expect_close(dx, want, 2e-6, "dx");
  }
};

TEST(CrossEntropy, MatchesReferenceForAnyTypesAndLayout) {
  ThreadPool pool(2);
  for (const std::int64_t classes : {1, 7, 90, 1301}) {
    for (const DType in : kActivations) {
      for (const DType out : kActivations) {
        Case c(in, out, classes, kStrided);
        c.run(pool);
        c.expect_right(c.x.values());
      }
    }
  }
}

TEST(CrossEntropy, GivesTheSameBitsForAnyThreadCountAndInPlace) {
  for (const DType dtype : kActivations) {
    ThreadPool one(1), three(3);
    Case a(dtype, dtype, 901, {}), b = a;
    a.run(one);
    b.run(three, true);
    EXPECT_EQ(a.dx.bytes(), b.x.bytes());
    EXPECT_EQ(a.losses.bytes(), b.losses.bytes());
  }
}

TEST(CrossEntropy, SurvivesLargeScores) {
  ThreadPool pool(1);
  Case c(DType::f32, DType::f32, 9, {});
  for (std::int64_t i = 0; i < c.x.size(); ++i) c.x.set(i, 1e4 * static_cast<double>(i % 9));
  c.run(pool);
  c.expect_right(c.x.values());
}

TEST(CrossEntropy, RefusesALabelBeyondTheClasses) {
  if (test_device() != Device::cpu) GTEST_SKIP() << "the caller's promise on the GPU";
  ThreadPool pool(1);
  Case c(DType::f32, DType::f32, 9, {});
  c.labels[1] = 9;
  EXPECT_THROW(c.run(pool), Error);
}

TEST(CrossEntropy, IsRecordedWithoutAGradient) {
  RecordedProgram p;
  Case c(DType::f32, DType::f32, 9, {});
  SampleTensor labels(DType::f32, {5});
  const Buffer x = p.input("x", c.x), weight = p.input("weight", c.weight);
  const Buffer label_bits = p.input("labels", labels);  // zeros: class 0 in any dtype of 4 bytes
  const Buffer ids = p.pb.view(label_bits, 0, DType::i32, {5});
  const Buffer losses = p.pb.temp("losses", {5}, DType::f32);
  cross_entropy(p.pb, {.x = x, .labels = ids, .weight = weight, .losses = losses});
  EXPECT_EQ(p.instruction(0).writes, std::vector{losses});
  p.run();
  const Doubles all = c.x.values();
  EXPECT_NEAR(p.value(losses)[0], ref::cross_entropy(std::span(all.data(), 9), 0), 1e-5);
}

}  // namespace
}  // namespace ballast::ops::cross_entropy_test
