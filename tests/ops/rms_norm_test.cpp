#include "ops/rms_norm.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/to_size.h"
#include "ops/kernels/token_quantum.h"
#include "ops/rope_3d.h"
#include "ops/silu.h"
#include "tests/ref/rms_norm.h"
#include "tests/ref/rope_3d.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::rms_norm_test {
namespace {

using namespace support;

constexpr float kEps = 1e-6f;

TEST(RmsNormRef, BackwardMatchesFiniteDifferences) {
  const Doubles x = normal_values(3 * 7, 1), w = normal_values(7, 2), dy = normal_values(3 * 7, 3);
  const double eps = 0.01;  // large enough to show
  const ref::RmsNormGrads grads = ref::rms_norm_backward(x, w, dy, eps);
  const auto of_x = [&](const Doubles& v) { return dot(dy, ref::rms_norm(v, w, eps).y); };
  const auto of_w = [&](const Doubles& v) { return dot(dy, ref::rms_norm(x, v, eps).y); };
  expect_close(grads.dx, finite_differences(x, of_x), 1e-8, "dx");
  expect_close(grads.dw, finite_differences(w, of_w), 1e-8, "dw");
}

TEST(RmsNorm, MatchesReference) {
  ThreadPool pool(2);
  for (const std::int64_t width : kWidths) {
    for (const DType dtype : kActivations) {
      for (const DType y_dtype : kActivations) {
        for (const DType w_dtype : kParameters) {
          SampleTensor x(dtype, {5, width}, kStrided), y(y_dtype, {5, width}, kStrided);
          SampleTensor w(w_dtype, {width}, {.start = 1}), r(DType::f32, {5}, {.start = 1});
          x.fill_normal(1, 3);
          w.fill_normal(2);
          rms_norm({.x = x.view(), .w = w.view(), .y = y.view(), .r = r.view(), .eps = kEps},
                   support::test_stream(pool));
          const ref::RmsNorm want = ref::rms_norm(x.values(), w.values(), kEps);
          expect_close(r, want.r, 3e-7, "r");  // a sum of squares, a root, a quotient
          expect_close(y, want.y, 4e-7, "y");  // two products more
        }
      }
    }
  }
}

TEST(RmsNorm, FollowedBySiluHasTheBitsOfBoth) {
  ThreadPool pool(2);
  for (const std::int64_t width : {5, 96, 192, 384, 1024, 1536}) {
    for (const DType dtype : kActivations) {
      SampleTensor x(dtype, {37, width}), want(dtype, {37, width}), y = want;
      SampleTensor w(DType::f32, {width}), r(DType::f32, {37});
      x.fill_normal(1, 3);
      w.fill_normal(2);
      RmsNorm call = {.x = x.view(), .w = w.view(), .y = want.view(), .r = r.view(), .eps = kEps};
      rms_norm(call, support::test_stream(pool));
      silu({.x = want.view(), .y = want.view()}, support::test_stream(pool));
      call.y = y.view();
      call.silu = true;
      rms_norm(call, support::test_stream(pool));
      EXPECT_EQ(y.values(), want.values()) << width;
    }
  }
}

TEST(RmsNorm, UsesEpsWhereTheRowIsSmall) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {2, 17}), y = x, w(DType::f32, {17}), r(DType::f32, {2});
  x.fill_normal(1, 1e-3);
  for (std::int64_t c = 0; c < 17; ++c) x.set(17 + c, 0);
  w.fill_normal(2);
  rms_norm({.x = x.view(), .w = w.view(), .y = y.view(), .r = r.view(), .eps = kEps},
           support::test_stream(pool));
  expect_close(y, ref::rms_norm(x.values(), w.values(), kEps).y, 4e-7, "y");
  EXPECT_NEAR(r[1], 1000, 1e-3);
  EXPECT_EQ(y[17], 0);
}

TEST(RmsNorm, BackwardMatchesReference) {
  ThreadPool pool(2);
  for (const std::int64_t width : kWidths) {
    for (const DType dtype : kActivations) {
      for (const DType grad_dtype : kActivations) {
        for (const DType w_dtype : kParameters) {
          SampleTensor x(dtype, {9, width}, kStrided), dy(grad_dtype, {9, width}, kStrided);
          SampleTensor dx(grad_dtype, {9, width}, kStrided), y = x, r(DType::f32, {9});
          SampleTensor w(w_dtype, {width}, {.start = 1}), dw(DType::f32, {width}, {.start = 3});
          x.fill_normal(1, 3);
          w.fill_normal(2);
          dy.fill_normal(3);
          dw.fill_normal(4);
          Doubles want_dw = dw.values();
          rms_norm({.x = x.view(), .w = w.view(), .y = y.view(), .r = r.view(), .eps = kEps},
                   support::test_stream(pool));
          rms_norm_backward({.x = x.view(),
                             .r = r.view(),
                             .w = w.view(),
                             .dy = dy.view(),
                             .dx = dx.view(),
                             .dw = dw.view()},
                            support::test_stream(pool));
          const ref::RmsNormGrads want =
              ref::rms_norm_backward(x.values(), w.values(), dy.values(), kEps);
          for (std::size_t c = 0; c < want_dw.size(); ++c) want_dw[c] += want.dw[c];
          if (width == 1) {  // g and x r^2 g x nearly cancel: measured against g
            for (std::int64_t i = 0; i < 9; ++i) {
              const double g = std::abs(dy[i] * w[0] * r[i]);
              ASSERT_NEAR(dx[i], want.dx[to_size(i)],
                          4e-7 * g + rounding(grad_dtype) * std::abs(dx[i]));
            }
          } else {
            expect_close(dx, want.dx, 1e-6, "dx");
          }
          expect_close(dw, want_dw, 1e-6, "dw");  // nine terms added in f32
        }
      }
    }
  }
}

// With more rows than a GPU has blocks of them at the smallest width: blocks go on to a second row.
TEST(RmsNorm, MatchesReferenceAtTheWidthsOfTheModels) {
  ThreadPool pool(2);
  std::vector<std::int64_t> widths = {8, 96, 136, 384, 640, 1024};  // pixels of video decoders
  widths.insert(widths.end(), std::begin(kRegisterWidths), std::end(kRegisterWidths));
  for (const std::int64_t width : widths) {
    for (const DType w_dtype : kParameters) {
      const std::int64_t rows = width == 1536 || width == 96 ? 1301 : 37;
      SampleTensor x(DType::bf16, {rows, width}, kAligned), y = x, dy = x, dx = x;
      SampleTensor w(w_dtype, {width}, {.start = 8}), r(DType::f32, {rows}, {.start = 1});
      SampleTensor dw(DType::f32, {width});
      x.fill_normal(1, 3);
      w.fill_normal(2);
      dy.fill_normal(3);
      rms_norm({.x = x.view(), .w = w.view(), .y = y.view(), .r = r.view(), .eps = kEps},
               support::test_stream(pool));
      rms_norm_backward({.x = x.view(),
                         .r = r.view(),
                         .w = w.view(),
                         .dy = dy.view(),
                         .dx = dx.view(),
                         .dw = dw.view()},
                        support::test_stream(pool));
      const ref::RmsNorm want = ref::rms_norm(x.values(), w.values(), kEps);
      const ref::RmsNormGrads grads =
          ref::rms_norm_backward(x.values(), w.values(), dy.values(), kEps);
      expect_close(r, want.r, 3e-7, "r");
      expect_close(y, want.y, 4e-7, "y");
      expect_close(dx, grads.dx, 1e-6, "dx");
      expect_close(dw, grads.dw, 2e-6, "dw");  // up to 1301 terms, 256 at a time
    }
  }
}

// x, w, dy and everything computed from them, by calls of these many rows.
struct Result {
  SampleTensor y, r, dx, dw;
};
Result run(DType dtype, int threads, const std::vector<std::int64_t>& cuts, bool in_place = false,
           std::int64_t width = 301) {
  const std::int64_t rows = 2 * kTokenQuantum + 37;
  ThreadPool pool(threads);
  SampleTensor x(dtype, {rows, width}), w(DType::bf16, {width}), dy(dtype, {rows, width});
  x.fill_normal(1);
  w.fill_normal(2);
  dy.fill_normal(3);
  Result out = {x, SampleTensor(DType::f32, {rows}), dy, SampleTensor(DType::f32, {width})};
  std::int64_t begin = 0;
  for (const std::int64_t n : cuts) {
    const auto part = [&](auto& t) { return t.view().rows(begin, n); };
    const ConstTensorView x_part = part(in_place ? out.y : x), r_part = part(out.r);
    rms_norm({.x = x_part, .w = w.view(), .y = part(out.y), .r = part(out.r), .eps = kEps},
             support::test_stream(pool));
    rms_norm_backward({.x = part(x),
                       .r = r_part,
                       .w = w.view(),
                       .dy = part(in_place ? out.dx : dy),
                       .dx = part(out.dx),
                       .dw = out.dw.view()},
                      support::test_stream(pool));
    begin += n;
  }
  EXPECT_EQ(begin, rows);
  return out;
}

void expect_same_bits(const Result& a, const Result& b) {
  EXPECT_EQ(a.y.bytes(), b.y.bytes());
  EXPECT_EQ(a.r.bytes(), b.r.bytes());
  EXPECT_EQ(a.dx.bytes(), b.dx.bytes());
  EXPECT_EQ(a.dw.bytes(), b.dw.bytes());
}

TEST(RmsNorm, GivesTheSameBitsForAnyThreadCountChunkingAndInPlace) {
  for (const DType dtype : kActivations) {
    const Result whole = run(dtype, 1, {2 * kTokenQuantum + 37});
    expect_same_bits(whole, run(dtype, 2, {2 * kTokenQuantum + 37}));
    expect_same_bits(whole, run(dtype, 3, {2 * kTokenQuantum + 37}));
    expect_same_bits(whole, run(dtype, 3, {kTokenQuantum, kTokenQuantum + 37}));
    expect_same_bits(whole, run(dtype, 2, {kTokenQuantum, kTokenQuantum, 37}));
    expect_same_bits(whole, run(dtype, 2, {2 * kTokenQuantum + 37}, true));
  }
  const Result wide = run(DType::bf16, 2, {2 * kTokenQuantum + 37}, false, 1536);
  expect_same_bits(wide, run(DType::bf16, 2, {kTokenQuantum, kTokenQuantum, 37}, true, 1536));
}

// dw of rows of small whole numbers with r = 1, which f32 adds without rounding; `start` decides
// whether a GPU adds eight columns at a time.
void expect_exact_weight_gradient(std::int64_t rows, std::int64_t width, std::int64_t start) {
  ThreadPool pool(2);
  SampleTensor x(DType::bf16, {rows, width}, {.start = start}), dy = x, dx = x;
  SampleTensor w(DType::f32, {width}), r(DType::f32, {rows}), dw(DType::f32, {width});
  Doubles want(to_size(width));
  for (std::int64_t i = 0; i < rows; ++i) {
    r.set(i, 1);
    for (std::int64_t c = 0; c < width; ++c) {
      const auto a = static_cast<double>((i * 7 + c) % 11 - 5), b = static_cast<double>(i % 5 + 1);
      x.set(i * width + c, a);
      dy.set(i * width + c, b);
      want[to_size(c)] += a * b;
    }
  }
  rms_norm_backward({.x = x.view(),
                     .r = r.view(),
                     .w = w.view(),
                     .dy = dy.view(),
                     .dx = dx.view(),
                     .dw = dw.view()},
                    support::test_stream(pool));
  EXPECT_EQ(dw.values(), want) << rows << " x " << width << " from " << start;
}

TEST(RmsNormWeight, CountsEveryRowOnce) {
  for (const std::int64_t rows : {1, 31, 32, 33, 37, 256, 300}) {
    for (const std::int64_t start : {0, 1}) expect_exact_weight_gradient(rows, 520, start);
  }
  expect_exact_weight_gradient(18 * kTokenQuantum + 5, 16,
                               0);                            // more quanta than are added at once
  expect_exact_weight_gradient(kTokenQuantum + 9, 32768, 0);  // more sums than a GPU keeps at once
}

TEST(RmsNormWeight, HasTheSameBitsInEightsAndAlone) {
  ThreadPool pool(2);
  constexpr std::int64_t kRows = 2 * kTokenQuantum + 41, kWidth = 264;
  for (const DType dtype : kActivations) {
    std::vector<SampleTensor> sums;
    for (const std::int64_t start : {8, 1}) {
      SampleTensor x(dtype, {kRows, kWidth}, {.start = start}), dy = x, dx = x;
      SampleTensor w(DType::f32, {kWidth}), r(DType::f32, {kRows});
      x.fill_normal(1);
      dy.fill_normal(2);
      r.fill_normal(3);
      w.fill_normal(4);
      SampleTensor& dw = sums.emplace_back(DType::f32, Shape{kWidth});
      dw.fill_normal(5);
      rms_norm_backward({.x = x.view(),
                         .r = r.view(),
                         .w = w.view(),
                         .dy = dy.view(),
                         .dx = dx.view(),
                         .dw = dw.view()},
                        support::test_stream(pool));
    }
    EXPECT_EQ(sums[0].bytes(), sums[1].bytes());
  }
}

// The same as rope_3d after the norm and, the other way, before its backward. A GPU turns within
// the kernel at the widths of the models where rows are aligned and w is frozen.
struct Turned {
  SampleTensor y, r, dx, dw;
};
Turned turned(DType dtype, std::int64_t width, std::int64_t head, SampleTensor::Layout layout,
              bool trained, bool fused, const std::vector<std::int64_t>& cuts) {
  const std::int64_t rows = std::accumulate(cuts.begin(), cuts.end(), std::int64_t{0});
  ThreadPool pool(2);
  const Stream stream = support::test_stream(pool);
  SampleTensor x(dtype, {rows, width}, layout), w(DType::f32, {width}), dy = x;
  SampleTensor cos_sin(DType::f32, {rows, head / 2, 2});
  x.fill_normal(1);
  w.fill_normal(2);
  dy.fill_normal(3);
  rope_3d_table({.grid = {1, 2, (rows + 1) / 2}, .table = cos_sin.view()}, stream);
  Turned out = {x, SampleTensor(DType::f32, {rows}), dy, SampleTensor(DType::f32, {width})};
  std::int64_t first = 0;
  for (const std::int64_t n : cuts) {
    const auto part = [&](auto& t) { return t.view().rows(first, n); };
    const auto heads = [&](TensorView v) {
      return TensorView(v.data, v.dtype, {n, width / head, head}, {v.strides[0], head, 1},
                        v.device);
    };
    const ConstTensorView here = part(cos_sin);
    rms_norm({.x = part(x),
              .w = w.view(),
              .y = part(out.y),
              .r = part(out.r),
              .eps = kEps,
              .cos_sin = fused ? here : ConstTensorView()},
             stream);
    const TensorView y = heads(part(out.y)), dx = heads(part(out.dx));
    if (!fused) {
      rope_3d({.x = y, .table = here, .y = y}, stream);
      rope_3d({.x = dx, .table = here, .y = dx, .inverse = true}, stream);
    }
    rms_norm_backward({.x = part(x),
                       .r = part(out.r),
                       .w = w.view(),
                       .dy = part(out.dx),
                       .dx = part(out.dx),
                       .dw = trained ? out.dw.view() : TensorView(),
                       .cos_sin = fused ? here : ConstTensorView()},
                      stream);
    first += n;
  }
  return out;
}

void expect_same_bits(const Turned& a, const Turned& b) {
  EXPECT_EQ(a.y.bytes(), b.y.bytes());
  EXPECT_EQ(a.r.bytes(), b.r.bytes());
  EXPECT_EQ(a.dx.bytes(), b.dx.bytes());
  EXPECT_EQ(a.dw.bytes(), b.dw.bytes());
}

// With more rows than a GPU has blocks of them at the smallest width.
TEST(RmsNormTurned, GivesTheBitsOfNormAndRotation) {
  const auto expect_same = [](DType dtype, std::int64_t width, std::int64_t head,
                              SampleTensor::Layout layout, bool trained, std::int64_t rows) {
    expect_same_bits(turned(dtype, width, head, layout, trained, true, {rows}),
                     turned(dtype, width, head, layout, trained, false, {rows}));
  };
  for (const bool trained : {false, true}) {
    for (const DType dtype : kActivations) expect_same(dtype, 96, 12, kStrided, trained, 37);
    for (const std::int64_t width : kRegisterWidths) {
      expect_same(DType::bf16, width, 128, kAligned, trained, 37);
    }
    expect_same(DType::bf16, 1536, 24, kAligned, trained, 37);
  }
  expect_same(DType::bf16, 1536, 128, kAligned, false, 1301);
}

TEST(RmsNormTurned, GivesTheSameBitsForAnyChunking) {
  constexpr std::int64_t kRows = kTokenQuantum + 37;
  for (const std::int64_t width : {96, 1536}) {
    expect_same_bits(turned(DType::bf16, width, 24, kAligned, false, true, {kRows}),
                     turned(DType::bf16, width, 24, kAligned, false, true, {kTokenQuantum, 37}));
  }
}

TEST(RmsNormTurned, IsRecordedWithItsTable) {
  RecordedProgram p;
  SampleTensor x(DType::f32, {6, 24}), w(DType::f32, {24}), dy = x;
  x.fill_normal(1);
  w.fill_normal(2);
  dy.fill_normal(3);
  const Buffer bx = p.input("x", x), bw = p.input("w", w), bdy = p.input("dy", dy);
  const Buffer table = rope_3d_table(p.pb, {1, 2, 3}, 8);
  const Buffer y = p.pb.temp("y", {6, 24}, DType::f32), r = p.pb.temp("r", {6}, DType::f32);
  rms_norm_into(p.pb, bx, bw, y, r, kEps, table);
  rms_norm_backward(p.pb, bx, r, bw, bdy, bdy, {}, table);
  EXPECT_EQ(p.instruction(1).reads, (std::vector{bx, bw, table}));
  EXPECT_EQ(p.instruction(2).reads, (std::vector{bx, r, bw, bdy, table}));
  p.run();
  const Doubles cos_sin = ref::rope_3d_table({1, 2, 3}, 8);
  const Doubles normed = ref::rms_norm(x.values(), w.values(), kEps).y;
  expect_close(p.value(y), ref::rope_3d(normed, 3, 8, cos_sin, false), 6e-7, "y");
  const Doubles unturned = ref::rope_3d(dy.values(), 3, 8, cos_sin, true);
  expect_close(p.value(bdy), ref::rms_norm_backward(x.values(), w.values(), unturned, kEps).dx,
               1.5e-6, "dx");
}

TEST(RmsNormTurned, RefusesTablesThatDoNotFit) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {2, 12}), w(DType::f32, {12}), r(DType::f32, {2});
  const auto run = [&](const ConstTensorView& cos_sin) {
    rms_norm({.x = x.view(), .w = w.view(), .y = x.view(), .r = r.view(), .cos_sin = cos_sin},
             support::test_stream(pool));
  };
  SampleTensor good(DType::f32, {2, 3, 2}), wide(DType::f32, {2, 4, 2}), few(DType::f32, {1, 3, 2});
  SampleTensor half(DType::bf16, {2, 3, 2}), flat(DType::f32, {2, 6});
  EXPECT_NO_THROW(run(good.view()));
  for (const SampleTensor* bad : {&wide, &few, &half, &flat}) EXPECT_THROW(run(bad->view()), Error);
}

TEST(RmsNorm, DoesNotReadDwWhenTheWeightIsFrozen) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {3, 5}), w(DType::f32, {5}), r(DType::f32, {3}), dy = x, dx = x;
  x.fill_normal(1);
  w.fill_normal(2);
  dy.fill_normal(3);
  RmsNormBackward a = {
      .x = x.view(), .r = r.view(), .w = w.view(), .dy = dy.view(), .dx = dx.view(), .dw = {}};
  rms_norm({.x = x.view(), .w = w.view(), .y = dx.view(), .r = r.view()},
           support::test_stream(pool));
  rms_norm_backward(a, support::test_stream(pool));
  SampleTensor with_dw = dx, dw(DType::f32, {5});
  a.dx = with_dw.view();
  a.dw = dw.view();
  rms_norm_backward(a, support::test_stream(pool));
  EXPECT_EQ(dx.bytes(), with_dw.bytes());
}

TEST(RmsNorm, AcceptsNoRows) {
  ThreadPool pool(2);
  SampleTensor x(DType::bf16, {0, 8}), y = x, w(DType::f32, {8}), r(DType::f32, {0});
  SampleTensor dw(DType::f32, {8});
  dw.fill_normal(1);
  const SampleTensor before = dw;
  rms_norm({.x = x.view(), .w = w.view(), .y = y.view(), .r = r.view()},
           support::test_stream(pool));
  rms_norm_backward({.x = x.view(),
                     .r = r.view(),
                     .w = w.view(),
                     .dy = x.view(),
                     .dx = y.view(),
                     .dw = dw.view()},
                    support::test_stream(pool));
  EXPECT_EQ(dw.bytes(), before.bytes());
}

TEST(RmsNorm, RefusesShapesAndTypesThatDoNotFit) {
  ThreadPool pool(1);
  SampleTensor x(DType::f32, {2, 4}), y(DType::f32, {2, 5}), w(DType::f32, {4}), r(DType::f32, {2});
  SampleTensor half(DType::f16, {2, 4});
  const Stream stream = support::test_stream(pool);
  EXPECT_THROW(rms_norm({.x = x.view(), .w = w.view(), .y = y.view(), .r = r.view()}, stream),
               Error);
  EXPECT_THROW(rms_norm({.x = half.view(), .w = w.view(), .y = x.view(), .r = r.view()}, stream),
               Error);
  EXPECT_THROW(rms_norm({.x = x.view(), .w = r.view(), .y = x.view(), .r = r.view()}, stream),
               Error);
}

TEST(RmsNorm, IsRecordedWithItsOperands) {
  RecordedProgram p;
  SampleTensor x(DType::bf16, {6, 24}), w(DType::f32, {24}), dy(DType::bf16, {6, 24});
  SampleTensor dw(DType::f32, {24});
  x.fill_normal(1);
  w.fill_normal(2);
  dy.fill_normal(3);
  const Buffer bx = p.input("x", x), bw = p.input("w", w), bdy = p.input("dy", dy);
  const Buffer bdw = p.input("dw", dw);
  const RmsNormOut out = rms_norm(p.pb, bx, bw, kEps);
  rms_norm_backward(p.pb, bx, out.r, bw, bdy, bdy, bdw);
  EXPECT_EQ(p.instruction(0).reads, (std::vector{bx, bw}));
  EXPECT_EQ(p.instruction(0).writes, (std::vector{out.y, out.r}));
  EXPECT_EQ(p.instruction(1).reads, (std::vector{bx, out.r, bw, bdy, bdw}));
  EXPECT_EQ(p.results(1), (std::vector{bdy, bdw}));
  rms_norm_backward(p.pb, bx, out.r, bw, bdy, bdy, {});  // frozen
  EXPECT_EQ(p.instruction(2).reads, (std::vector{bx, out.r, bw, bdy}));
  EXPECT_EQ(p.instruction(2).writes, (std::vector{bdy}));
  p.run();
  EXPECT_EQ(p.value(out.y).dtype(), DType::bf16);
  EXPECT_EQ(p.value(out.r).shape(), (Shape{6}));
  expect_close(p.value(out.y), ref::rms_norm(x.values(), w.values(), kEps).y, 4e-7, "y");
  expect_close(p.value(bdw), ref::rms_norm_backward(x.values(), w.values(), dy.values(), kEps).dw,
               1e-6, "dw");
}

}  // namespace
}  // namespace ballast::ops::rms_norm_test
