#include "ops/linear/quantize_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/convert.h"
#include "core/random.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "plan/bindings.h"
#include "tests/ref/quantize_rows.h"
#include "tests/support/test_device.h"

namespace ballast::quantize_rows_test {
namespace {

constexpr DType kTargets[] = {DType::i8, DType::f8_e4m3, DType::f8_e5m2};

struct Weight {
  std::vector<float> values;              // what the elements are, after rounding to the dtype
  support::DeviceVector<std::byte> data;  // rows of columns + pad elements, from byte `start` on
  ConstTensorView view;
};

Weight weight(std::int64_t rows, std::int64_t columns, DType dtype, std::int64_t pad = 0,
              std::int64_t start = 1) {
  Weight w;
  w.values.resize(to_size(rows * columns));
  fill_normal(random_source(1, "w", 0, "w"), 0, w.values.data(), rows * columns);
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  w.data.resize(to_size(start + rows * (columns + pad) * size));
  for (std::int64_t n = 0; n < rows; ++n) {
    float* row = w.values.data() + n * columns;
    // Rows of very different size; row 1 is zero.
    for (std::int64_t k = 0; k < columns; ++k) {
      row[k] *= n == 1 ? 0.0f : std::ldexp(1.0f, static_cast<int>(n % 9) * 3 - 14);
    }
    std::byte* out = w.data.data() + start + n * (columns + pad) * size;
    convert(row, DType::f32, out, dtype, columns);
    convert(out, dtype, row, DType::f32, columns);
  }
  w.view = ConstTensorView(w.data.data() + start, dtype, {rows, columns}, {columns + pad, 1},
                           support::test_device());
  return w;
}

struct Result {
  std::vector<std::byte> q;
  std::vector<float> scale;
};

Result quantized(const ConstTensorView& w, DType to, bool per_row, int threads) {
  support::DeviceVector<std::byte> q(to_size(w.elements()));
  support::DeviceVector<float> scale(per_row ? to_size(w.shape[0]) : 1);
  const Device device = support::test_device();
  ThreadPool pool(threads);
  ops::quantize_rows({.w = w,
                      .q = TensorView(q.data(), to, w.shape, device),
                      .scale = TensorView(reinterpret_cast<std::byte*>(scale.data()), DType::f32,
                                          {static_cast<std::int64_t>(scale.size())}, device),
                      .name = "blocks.0.ffn.0.weight"},
                     support::test_stream(pool));
  support::device_memory_is_read();
  return {{q.begin(), q.end()}, {scale.begin(), scale.end()}};
}

double value_of(std::byte code, DType t) {
  const auto c = static_cast<std::uint8_t>(code);
  return t == DType::i8 ? static_cast<double>(static_cast<std::int8_t>(c)) : ref::decode(c, t);
}

// The quotient and its rounding are the same f32 operations: equal, not close.
TEST(QuantizeRows, MatchesTheReferenceExactly) {
  for (const DType from : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [rows, columns] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 5},
                                                            {3, 0},
                                                            {1, 1},
                                                            {2, 1},
                                                            {5, 3},
                                                            {20, 16},
                                                            {33, 67},
                                                            {2, 13000},
                                                            {400, 48},
                                                            {2, 544},
                                                            {2, 16400}}) {
      // Off alignment, or aligned to anything and in host memory.
      const bool aligned = (rows + columns) % 2 == 0;
      Weight w = aligned ? weight(rows, columns, from, 8, 16) : weight(rows, columns, from, 3);
      if (aligned) w.view.device = Device::cpu;
      for (const DType to : kTargets) {
        for (const bool per_row : {true, false}) {
          const ref::Quantized want = ref::quantize_rows(w.values, rows, columns, to, per_row);
          const Result got = quantized(w.view, to, per_row, 2);
          ASSERT_EQ(got.scale, want.scale) << name_of(to);
          for (std::size_t i = 0; i < got.q.size(); ++i) {
            ASSERT_EQ(value_of(got.q[i], to), want.q[i])
                << name_of(from) << " to " << name_of(to) << " element " << i;
          }
        }
      }
    }
  }
}

TEST(QuantizeRows, ComesBackWithinHalfAStep) {
  const Weight w = weight(40, 129, DType::f32);
  for (const DType to : kTargets) {
    const ref::Quantized q = ref::quantize_rows(w.values, 40, 129, to, true);
    const std::vector<double> back = ref::dequantize(q, 129);
    for (std::size_t i = 0; i < back.size(); ++i) {
      const double x = static_cast<double>(w.values[i]),
                   scale = static_cast<double>(q.scale[i / 129]);
      // Half a step of the grid: one unit for int8, 2^-mantissa of the value (or the subnormal
      // step) for fp8; and the f32 quotient adds a few 2^-24 of the value.
      double step = scale;
      if (to != DType::i8) {
        const ref::Format f = ref::format_of(to);
        step = std::max(std::ldexp(std::fabs(x), -f.mantissa),
                        std::ldexp(scale, f.min_exponent - f.mantissa));
      }
      ASSERT_LE(std::fabs(back[i] - x), step / 2 + std::fabs(x) * 0x1p-21) << name_of(to);
    }
  }
}

TEST(QuantizeRows, ZerosGetTheSmallestScale) {
  const support::DeviceVector<float> zeros(16, 0.0f);
  const ConstTensorView w(reinterpret_cast<const std::byte*>(zeros.data()), DType::f32, {2, 8},
                          support::test_device());
  for (const DType to : kTargets) {
    const Result r = quantized(w, to, true, 1);
    EXPECT_EQ(r.scale, (std::vector<float>{1e-8f, 1e-8f}));
    for (const std::byte b : r.q) EXPECT_EQ(b, std::byte{0});
  }
}

TEST(QuantizeRows, TheLargestOfARowTakesTheLargestCode) {
  const Weight w = weight(9, 64, DType::bf16);
  const Result r = quantized(w.view, DType::i8, true, 1);
  for (std::size_t n = 0; n < 9; ++n) {
    if (n == 1) continue;  // zeros
    int most = 0;
    for (std::size_t k = 0; k < 64; ++k) {
      most = std::max(most, std::abs(static_cast<int>(value_of(r.q[n * 64 + k], DType::i8))));
    }
    EXPECT_EQ(most, 127) << "row " << n;
  }
}

TEST(QuantizeRows, ThreadsAndChunksDoNotChangeBits) {
  const Weight w = weight(50, 77, DType::bf16);
  for (const DType to : kTargets) {
    for (const bool per_row : {true, false}) {
      const Result one = quantized(w.view, to, per_row, 1);
      for (const int threads : {2, 3}) {
        const Result many = quantized(w.view, to, per_row, threads);
        EXPECT_TRUE(many.q == one.q);
        EXPECT_EQ(many.scale, one.scale);
      }
    }
    const Result whole = quantized(w.view, to, true, 1);
    const Result part = quantized(w.view.rows(13, 20), to, true, 2);
    EXPECT_EQ(std::memcmp(part.q.data(), whole.q.data() + 13 * 77, part.q.size()), 0);
    EXPECT_EQ(std::memcmp(part.scale.data(), whole.scale.data() + 13, 20 * sizeof(float)), 0);
  }
}

TEST(QuantizeRows, RefusesWhatIsNoNumberAndNamesTheTensor) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const bool per_row : {true, false}) {
      support::DeviceVector<float> values(5 * 19, 1.0f);
      values[3 * 19 + 18] = bad;
      const ConstTensorView w(reinterpret_cast<const std::byte*>(values.data()), DType::f32,
                              {5, 19}, support::test_device());
      for (const DType to : kTargets) {
        if (support::test_device() == Device::cuda) {  // which cannot throw: it runs later
          const Result r = quantized(w, to, per_row, 2);
          EXPECT_FALSE(std::isfinite(r.scale[per_row ? 3 : 0]));
          EXPECT_TRUE(!per_row || std::isfinite(r.scale[2]));
          continue;
        }
        try {
          quantized(w, to, per_row, 2);
          ADD_FAILURE() << "accepted " << bad;
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::input);
          EXPECT_THAT(e.what(), testing::HasSubstr("blocks.0.ffn.0.weight"));
          EXPECT_THAT(e.what(), testing::HasSubstr("row 3, column 18"));
        }
      }
    }
  }
}

TEST(QuantizeRows, WithoutANamePassesOnWhatIsNoNumber) {
  support::DeviceVector<float> values(2 * 16, 1.0f), scale(2);
  values[16] = std::nanf("");
  support::DeviceVector<std::byte> q(2 * 16);
  ThreadPool pool(1);
  const Device device = support::test_device();
  const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
  ops::quantize_rows({.w = ConstTensorView(bytes(values), DType::f32, {2, 16}, device),
                      .q = TensorView(q.data(), DType::f8_e4m3, {2, 16}, device),
                      .scale = TensorView(bytes(scale), DType::f32, {2}, device),
                      .name = ""},
                     support::test_stream(pool));
  support::device_memory_is_read();
  EXPECT_EQ(scale[0], 1.0f / 448);
  EXPECT_TRUE(std::isnan(scale[1]));
}

TEST(QuantizeRows, RefusesOperandsThatDoNotFit) {
  std::byte memory[256] = {};
  const TensorView w(memory, DType::f32, {2, 4}), scale(memory + 128, DType::f32, {2});
  const auto attempt = [&](const TensorView& from, const TensorView& to, const TensorView& s) {
    ThreadPool pool(1);
    ops::quantize_rows({.w = from, .q = to, .scale = s}, support::test_stream(pool));
  };
  const TensorView q(memory + 64, DType::i8, {2, 4});
  EXPECT_NO_THROW(attempt(w, q, scale));
  EXPECT_THROW(attempt(w, TensorView(memory + 64, DType::i8, {4, 2}), scale), Error);
  EXPECT_THROW(attempt(w, TensorView(memory + 64, DType::bf16, {2, 4}), scale), Error);
  EXPECT_THROW(attempt(w, q, TensorView(memory + 128, DType::f32, {3})), Error);
  EXPECT_THROW(attempt(TensorView(memory, DType::f32, {2, 4}, {1, 2}), q, scale), Error);
}

TEST(RecordedQuantizeRows, RunsAndNamesTheWeight) {
  ProgramSet set;
  ProgramBuilder pb(set, "load");
  const Buffer w = pb.persistent("head.weight", {2, 4}, DType::f32, Role::staging);
  const Buffer q = pb.persistent("q", {2, 4}, DType::i8, Role::weights);
  const Buffer scale = pb.persistent("scale", {2}, DType::f32, Role::weights);
  ops::quantize_rows(pb, w, q, scale);
  EXPECT_THROW(ops::quantize_rows(pb, w, w, scale), Error);
  const Instruction& now = set.programs[0].instructions.at(0);
  EXPECT_EQ(now.reads, std::vector<Buffer>{w});
  EXPECT_EQ(now.writes, (std::vector<Buffer>{q, scale}));
  alignas(16) std::byte memory[64] = {};
  float values[] = {1, -127, 2.5f, 3.5f, 0, 0, 0, 254};
  std::memcpy(memory, values, sizeof values);
  std::vector<std::uint64_t> offsets(set.buffers.size(), 0);
  offsets[q.id] = 32;
  offsets[scale.id] = 40;
  ThreadPool pool(1);
  const ArenaBases arenas = {.base = {memory, nullptr}};
  const StepValues step;
  const Bindings bindings(set, offsets, arenas, now, step, support::test_stream(pool));
  now.run(bindings);
  std::int8_t got[8];
  std::memcpy(got, memory + 32, 8);
  EXPECT_EQ(std::vector<int>(got, got + 8), (std::vector<int>{1, -127, 2, 4, 0, 0, 0, 127}));
  values[0] = std::nanf("");
  std::memcpy(memory, values, sizeof values);
  try {
    now.run(bindings);
    ADD_FAILURE() << "accepted NaN";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("head.weight"));
  }
}

}  // namespace
}  // namespace ballast::quantize_rows_test
