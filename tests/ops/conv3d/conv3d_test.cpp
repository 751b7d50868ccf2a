#include "ops/conv3d/conv3d.h"

#include <gtest/gtest.h>

#include "core/to_size.h"
#include "ops/copy.h"
#include "tests/ref/conv3d.h"
#include "tests/support/recorded_program.h"
#include "tests/support/row_op.h"

namespace ballast::ops::conv3d_test {
namespace {

using namespace support;
using ref::ConvCase;

constexpr ConvGeometry kCausal = {.kernel = {3, 3, 3}, .pad = {2, 1, 1}};
constexpr ConvGeometry kTime = {.kernel = {3, 1, 1}, .pad = {2, 0, 0}};
constexpr ConvGeometry kTimeDown = {.kernel = {3, 1, 1}, .stride = {2, 1, 1}, .pad = {1, 0, 0}};
constexpr ConvGeometry kDown = {.kernel = {1, 3, 3}, .stride = {1, 2, 2}};
constexpr ConvGeometry kUp = {.kernel = {1, 3, 3}, .pad = {0, 1, 1}, .zoom = 2};
constexpr ConvGeometry kPoint = {};
// All frames are there: what cuDNN takes in bf16.
constexpr ConvGeometry kJoined = {.kernel = {3, 3, 3}, .pad = {0, 1, 1}};

std::vector<ConvCase> cases() {
  return {{3, 4, 5, 3, 2, 3, 4, 5, 7, kCausal}, {1, 2, 3, 8, 0, 1, 2, 3, 4, kCausal},
          {2, 3, 4, 5, 1, 2, 3, 4, 6, kTime},   {4, 3, 2, 4, 1, 2, 3, 2, 4, kTimeDown},
          {2, 6, 4, 4, 0, 2, 3, 2, 5, kDown},   {2, 3, 2, 4, 0, 2, 6, 4, 8, kUp},
          {2, 3, 5, 6, 0, 2, 3, 5, 9, kPoint},  {1, 17, 19, 8, 2, 1, 17, 19, 8, kCausal},
          {4, 5, 6, 8, 0, 2, 5, 6, 16, kJoined}};
}

std::size_t count(const Shape& s) { return to_size(s.elements()); }

TEST(Conv3dRef, BackwardMatchesFiniteDifferences) {
  for (ConvCase c : cases()) {
    if (c.height > 10 || c.outputs > 10) continue;  // many differences
    const auto n = to_size((c.frames + c.history) * c.height * c.width * c.channels);
    const Doubles x = normal_values(n, 1);
    const Doubles w = normal_values(count({c.outputs, c.g.taps(), c.channels}), 2);
    const Doubles b = normal_values(count({c.outputs}), 3);
    const Doubles dy =
        normal_values(count({c.out_frames, c.out_height, c.out_width, c.outputs}), 4);
    const auto loss = [&](const Doubles& x1, const Doubles& w1, const Doubles& b1) {
      const Doubles y = ref::conv3d(c, x1, w1, b1);
      double sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
      return sum;
    };
    const ref::ConvGradients g = ref::conv3d_backward(c, x, w, dy);
    expect_close(g.dx, finite_differences(x, [&](const Doubles& v) { return loss(v, w, b); }), 1e-7,
                 "dx");
    expect_close(g.dw, finite_differences(w, [&](const Doubles& v) { return loss(x, v, b); }), 1e-7,
                 "dw");
    expect_close(g.dbias, finite_differences(b, [&](const Doubles& v) { return loss(x, w, v); }),
                 1e-7, "dbias");
  }
}

// A case's tensors of one dtype: weights as files store them, and packed.
struct Tensors {
  SampleTensor all, x, history, w, rows, bias, y, dy;

  Tensors(const ConvCase& c, DType t, ThreadPool& pool)
      : all(t, {c.history + c.frames, c.height, c.width, c.channels}),
        x(t, {c.frames, c.height, c.width, c.channels}),
        history(t, {std::max<std::int64_t>(c.history, 1), c.height, c.width, c.channels}),
        w(t, {c.outputs, c.channels, c.g.taps()}),
        rows(t, {c.outputs, c.g.row(c.channels)}),
        bias(DType::f32, {c.outputs}),
        y(t, {c.out_frames, c.out_height, c.out_width, c.outputs}),
        dy(t, y.shape()) {
    all.fill_normal(1);
    w.fill_normal(2);
    bias.fill_normal(3);
    dy.fill_normal(4);
    const std::int64_t before = c.history * c.height * c.width * c.channels;
    for (std::int64_t i = 0; i < before; ++i) history.set(i, all[i]);
    for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, all[before + i]);
    pack_conv_weight({.from = w.view(),
                      .to = rows.view(),
                      .outputs = c.outputs,
                      .channels = c.channels,
                      .taps = c.g.taps()},
                     test_stream(pool));
    device_memory_is_read();  // the host copies what was packed
  }
  Doubles reference_weights(const ConvCase& c) const {  // [N, taps, C]
    Doubles v(count(w.shape()));
    for (std::int64_t n = 0; n < c.outputs; ++n) {
      for (std::int64_t k = 0; k < c.channels; ++k) {
        for (std::int64_t t = 0; t < c.g.taps(); ++t) {
          v[c.w_at(n, t) + to_size(k)] = w[(n * c.channels + k) * c.g.taps() + t];
        }
      }
    }
    return v;
  }
};

// f32 sums of at most 216 products, or bf16 products with a rounded result.
double tolerance(DType t) { return t == DType::f32 ? 2e-6 : 4e-3; }

TEST(Conv3d, MatchesReferenceInEveryGeometry) {
  ThreadPool pool(2);
  for (const ConvCase& c : cases()) {
    for (const DType t : kActivations) {
      const Tensors s(c, t, pool);
      RecordedProgram p;
      const Buffer x = p.input("x", s.x), history = p.input("history", s.history);
      const LinearWeight w = {p.input("w", s.rows), p.input("b", s.bias), {}};
      const Buffer y = p.pb.temp("y", s.y.shape(), t);
      const Buffer twice = p.pb.temp("twice", s.y.shape(), t);
      for (const bool again : {false, true}) {
        conv3d_into(p.pb, x, c.history > 0 ? history : Buffer(), w, again ? twice : y,
                    {.geometry = c.g, .accumulate = again, .frames = c.out_frames});
        if (!again) copy(p.pb, y, twice);
      }
      p.run();
      Doubles want = ref::conv3d(c, s.all.values(), s.reference_weights(c), s.bias.values());
      expect_close(p.value(y), want, tolerance(t), "y");
      for (double& v : want) v *= 2;
      expect_close(p.value(twice), want, tolerance(t), "y + y");
    }
  }
}

TEST(Conv3d, GradientsMatchReferenceInEveryGeometry) {
  ThreadPool pool(2);
  for (ConvCase c : cases()) {
    c.history = 0;
    for (const DType t : kActivations) {
      const Tensors s(c, t, pool);
      RecordedProgram p;
      const Buffer x = p.input("x", s.x), dy = p.input("dy", s.dy), rows = p.input("w", s.rows);
      const SampleTensor zero_w(DType::f32, s.rows.shape()), zero_b(DType::f32, s.bias.shape());
      const Buffer dw = p.input("dw", zero_w), db = p.input("db", zero_b);
      const Buffer plain = p.pb.temp("plain", s.w.shape(), DType::f32);
      conv3d_dw(p.pb, x, dy, dw, db, {.geometry = c.g, .frames = c.out_frames});
      unpack_conv_weight(p.pb, dw, plain, c.g.taps());
      // A zoomed input gets the sum over its copies, which is another operation.
      const std::int64_t zoom = c.g.zoom;
      const Buffer transposed = transpose_conv_weight(p.pb, rows, c.channels, c.g.taps());
      const Buffer dx = p.pb.temp("dx", {c.frames, c.height * zoom, c.width * zoom, c.channels}, t);
      conv3d_into(p.pb, dy, {}, {transposed, {}, {}}, dx,
                  {.geometry = c.g.transposed(), .frames = c.frames});
      p.run();
      const ref::ConvGradients g =
          ref::conv3d_backward(c, s.x.values(), s.reference_weights(c), s.dy.values());
      Doubles want_w(g.dw.size());
      for (std::int64_t n = 0; n < c.outputs; ++n) {
        for (std::int64_t k = 0; k < c.channels; ++k) {
          for (std::int64_t i = 0; i < c.g.taps(); ++i) {
            want_w[to_size((n * c.channels + k) * c.g.taps() + i)] =
                g.dw[c.w_at(n, i) + to_size(k)];
          }
        }
      }
      expect_close(p.value(plain), want_w, 4e-6, "dw");
      expect_close(p.value(db), g.dbias, 4e-6, "dbias");
      if (zoom == 1) expect_close(p.value(dx), g.dx, tolerance(t), "dx");
    }
  }
}

TEST(Conv3d, GivesTheSameBitsFrameByFrameAndForAnyThreadCount) {
  ConvCase c = {5, 17, 19, 8, 0, 5, 17, 19, 8, kCausal};
  const auto run = [&](int threads, const std::vector<std::int64_t>& cuts) {
    ThreadPool pool(threads);
    const Tensors s(c, DType::f32, pool);
    RecordedProgram p(threads);
    const Buffer x = p.input("x", s.x);
    const LinearWeight w = {p.input("w", s.rows), p.input("b", s.bias), {}};
    const Buffer y = p.pb.temp("y", s.y.shape(), DType::f32);
    std::int64_t at = 0;
    for (const std::int64_t n : cuts) {
      const std::int64_t before = std::min<std::int64_t>(at, 2);
      conv3d_into(p.pb, p.pb.rows(x, at, n), before ? p.pb.rows(x, at - before, before) : Buffer(),
                  w, p.pb.rows(y, at, n), {.geometry = c.g, .frames = n});
      at += n;
    }
    p.run();
    return p.value(y);
  };
  const SampleTensor whole = run(1, {5});
  EXPECT_EQ(whole.bytes(), run(2, {5}).bytes());
  EXPECT_EQ(whole.bytes(), run(3, {1, 4}).bytes());
  EXPECT_EQ(whole.bytes(), run(2, {1, 1, 1, 1, 1}).bytes());
}

// Lines of an image have the same bits in any part of it that begins and ends between lines.
TEST(Conv3d, GivesTheSameBitsInPartsOfAPicture) {
  const std::int64_t height = 24, width = 37, lines = 2;
  ThreadPool pool(2);
  for (const DType t : kActivations) {
    for (const ConvGeometry& g : {kCausal, kPoint, kJoined}) {
      const std::int64_t frames = g.kernel == kPoint.kernel ? 1 : 3;
      const ConvCase c = {frames, height, width, 16, 0, 1, height, width, 8, g};
      const Tensors s(c, t, pool);
      const auto run = [&](std::int64_t first, std::int64_t rows) {
        RecordedProgram p(2);
        SampleTensor part(t, {frames, rows, width, 16});
        for (std::int64_t i = 0; i < part.size(); ++i) {
          const std::int64_t frame = rows * width * 16;
          part.set(i, s.x[(i / frame * height + first) * width * 16 + i % frame]);
        }
        const Buffer x = p.input("x", part);
        const LinearWeight w = {p.input("w", s.rows), p.input("b", s.bias), {}};
        const Buffer y = p.pb.temp("y", {1, rows, width, 8}, t);
        conv3d_into(p.pb, x, {}, w, y,
                    {.geometry = g, .frames = 1, .lines = lines, .whole_height = height});
        p.run();
        return p.value(y);
      };
      const SampleTensor whole = run(0, height);
      for (const auto& [first, rows] : {std::pair(0, 10), std::pair(6, 8), std::pair(10, 14)}) {
        const SampleTensor part = run(first, rows);
        const std::int64_t row = width * 8;
        for (std::int64_t i = row; i < part.size() - row; ++i) {  // but its own borders
          ASSERT_EQ(part[i], whole[first * row + i]) << name_of(t) << " " << first << " " << i;
        }
      }
    }
  }
}

TEST(Conv3d, WritesInterleavedFramesAndAddsToWhatIsThere) {
  ThreadPool pool(1);
  const ConvCase c = {2, 2, 3, 4, 0, 2, 2, 3, 4, kTime};
  const Tensors s(c, DType::f32, pool);
  RecordedProgram p;
  const Buffer x = p.input("x", s.x);
  const LinearWeight w = {p.input("w", s.rows), p.input("b", s.bias), {}};
  SampleTensor five(DType::f32, {5, 2, 3, 4});
  for (std::int64_t i = 0; i < five.size(); ++i) five.set(i, 10);
  const Buffer y = p.input("y", five);
  conv3d_into(p.pb, x, {}, w, y,
              {.geometry = c.g, .accumulate = true, .frames = 2, .y_first = 1, .y_step = 2});
  p.run();
  const Doubles want = ref::conv3d(c, s.x.values(), s.reference_weights(c), s.bias.values());
  const SampleTensor got = p.value(y);
  for (std::int64_t i = 0; i < five.size(); ++i) {
    const std::int64_t frame = i / 24;
    const double added = frame % 2 == 1 ? want[to_size((frame / 2) * 24 + i % 24)] : 0;
    EXPECT_NEAR(got[i], 10 + added, 1e-5) << i;
  }
}

TEST(Conv3d, RefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  const ConvCase c = {2, 2, 3, 4, 0, 2, 2, 3, 4, kCausal};
  Tensors s(c, DType::f32, pool);
  Conv3d call = {.x = s.x.view(),
                 .w = s.rows.view(),
                 .bias = s.bias.view(),
                 .y = s.y.view(),
                 .workspace = {},
                 .geometry = c.g};
  EXPECT_THROW(conv3d(call, test_stream(pool)), Error);  // no workspace
  call.geometry.kernel[0] = 4;
  EXPECT_THROW(conv3d(call, test_stream(pool)), Error);
}

}  // namespace
}  // namespace ballast::ops::conv3d_test
