#include "ops/copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/convert.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "plan/bindings.h"
#include "tests/ref/copy.h"
#include "tests/support/test_device.h"

namespace ballast::copy_test {
namespace {

using support::DeviceVector;

// Bytes a view may touch; the memory starts at an odd address when asked to.
std::size_t span(const Shape& shape, const Shape& strides, DType t) {
  std::int64_t last = 0;
  for (int i = 0; i < shape.rank(); ++i) last += (shape[i] - 1) * strides[i];
  return shape.elements() == 0 ? 0 : to_size(last + 1) * size_of(t);
}

DeviceVector<std::byte> noise(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  DeviceVector<std::byte> v(bytes);
  for (std::byte& b : v) b = static_cast<std::byte>(random());
  return v;
}

struct Case {
  Shape shape, from, to;  // strides
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {{}, {}, {}},
      {{0}, {1}, {1}},
      {{3, 0, 5}, {0, 5, 1}, {0, 5, 1}},
      {{1}, {7}, {9}},
      {{17}, {1}, {1}},
      {{1000}, {1}, {3}},
      {{1000}, {2}, {1}},
      {{300, 2}, {1, 300}, {2, 1}},                   // transposed
      {{5, 7}, {11, 1}, {7, 1}},                      // rows cut out of a wider matrix
      {{5, 7}, {7, 1}, {13, 1}},                      // and put into one
      {{4, 6}, {0, 1}, {6, 1}},                       // one row repeated
      {{4, 700}, {1, 0}, {700, 1}},                   // one element repeated
      {{2, 3, 4, 5}, {60, 20, 5, 1}, {1, 2, 6, 24}},  // all dimensions reversed
      {{2, 1, 3, 1, 2, 2, 1, 3}, {36, 99, 12, 5, 6, 3, 1, 1}, {36, 7, 12, 1, 6, 3, 2, 1}},
      {{3, 70001}, {70001, 1}, {70003, 1}},  // several tasks, cut inside rows
      {{70001, 3}, {4, 1}, {3, 1}},
      {{8000}, {1}, {1}},  // whole vectors
      {{6, 64}, {72, 1}, {80, 1}},
      {{3, 6, 64}, {64, 192, 1}, {384, 64, 1}},
  };
  return kCases;
}

// The GPU takes host memory on either side.
std::vector<std::pair<Device, Device>> directions() {
  const Device d = support::test_device();
  if (d == Device::cpu) return {{d, d}};
  return {{d, d}, {Device::cpu, d}, {d, Device::cpu}};
}

void expect_matches_reference(const Case& c, DType from_type, DType to_type, ThreadPool* pool,
                              std::size_t shift) {
  const DeviceVector<std::byte> from = noise(span(c.shape, c.from, from_type) + shift, 1);
  const DeviceVector<std::byte> before = noise(span(c.shape, c.to, to_type) + shift, 2);
  for (const auto& [from_device, to_device] : directions()) {
    DeviceVector<std::byte> to = before, want = before;
    const ConstTensorView x(from.data() + shift, from_type, c.shape, c.from, from_device);
    ref::copy(x, TensorView(want.data() + shift, to_type, c.shape, c.to));
    ops::copy({.from = x, .to = TensorView(to.data() + shift, to_type, c.shape, c.to, to_device)},
              support::test_stream(*pool));
    support::device_memory_is_read();
    EXPECT_TRUE(to == want) << c.shape.elements() << " elements of rank " << c.shape.rank() << ", "
                            << name_of(from_type) << " on " << name_of(from_device) << " to "
                            << name_of(to_type) << " on " << name_of(to_device)
                            << ": wrong, or a byte beside the elements changed";
  }
}

TEST(Copy, MovesEveryShapeAndStride) {
  ThreadPool pool(2);
  for (const Case& c : cases()) {
    for (const DType t : {DType::f32, DType::bf16, DType::i8, DType::i64, DType::boolean}) {
      expect_matches_reference(c, t, t, &pool, 0);
      expect_matches_reference(c, t, t, &pool, 1);
    }
  }
}

TEST(Copy, ConvertsEveryShapeAndStride) {
  ThreadPool pool(3);
  const std::pair<DType, DType> pairs[] = {
      {DType::f32, DType::bf16},    {DType::bf16, DType::f32}, {DType::f16, DType::f8_e4m3},
      {DType::f8_e5m2, DType::f32}, {DType::f64, DType::f16},  {DType::i8, DType::f32},
      {DType::i64, DType::f64},
  };
  for (const Case& c : cases()) {
    for (const auto& [from, to] : pairs) {
      expect_matches_reference(c, from, to, &pool, 0);
      expect_matches_reference(c, from, to, &pool, 1);
    }
  }
}

TEST(Copy, GivesTheSameBitsForAnyThreadCount) {
  const std::int64_t n = 3 * 65536 + 77;
  const DeviceVector<std::byte> from = noise(to_size(n) * 4, 3);
  DeviceVector<std::byte> first;
  for (const int threads : {0, 1, 2, 3}) {
    DeviceVector<std::byte> to(to_size(n) * 2);
    const Device device = threads == 0 ? Device::cpu : support::test_device();
    const ops::Copy a = {.from = ConstTensorView(from.data(), DType::f32, {n}, device),
                         .to = TensorView(to.data(), DType::bf16, {n}, device)};
    if (threads == 0) {
      ops::copy(a, {});  // without a pool, on the CPU: the bits of every device
      first = to;
    } else {
      ThreadPool pool(threads);
      ops::copy(a, support::test_stream(pool));
      support::device_memory_is_read();
      EXPECT_TRUE(to == first) << threads;
    }
  }
}

TEST(Copy, SaturatesWhereItIsAskedTo) {
  ThreadPool pool(2);
  for (const DType from : {DType::f64, DType::f32, DType::f16}) {
    for (const DType to : {DType::f32, DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2}) {
      for (const std::int64_t n : {4096, 333}) {
        const auto bytes = to_size(n) * size_of(to);
        const DeviceVector<std::byte> x = noise(to_size(n) * size_of(from), 5);
        DeviceVector<std::byte> got(bytes), want(bytes);
        convert(x.data(), from, want.data(), to, n, Rounding::saturating);
        ops::copy({.from = ConstTensorView(x.data(), from, {n}, support::test_device()),
                   .to = TensorView(got.data(), to, {n}, support::test_device()),
                   .rounding = Rounding::saturating},
                  support::test_stream(pool));
        support::device_memory_is_read();
        EXPECT_TRUE(got == want) << name_of(from) << " to " << name_of(to);
      }
    }
  }
}

TEST(Copy, RefusesOperandsThatDoNotFit) {
  float a[4] = {}, b[4] = {};
  auto* from = reinterpret_cast<std::byte*>(a);
  auto* to = reinterpret_cast<std::byte*>(b);
  EXPECT_THROW(ops::copy({.from = TensorView(from, DType::f32, {4}),
                          .to = TensorView(to, DType::f32, {2, 2})},
                         {}),
               Error);
  EXPECT_THROW(
      ops::copy({.from = TensorView(from, DType::f32, {4}), .to = TensorView(to, DType::i32, {4})},
                {}),
      Error);
  EXPECT_THROW(ops::copy({.from = TensorView(from, DType::f32, {4}),
                          .to = TensorView(to, DType::f32, {4}, {0})},
                         {}),
               Error);
}

TEST(Copy, MovesBytesWhereElementsStayAndRowsAreLong) {
  ProgramSet set;
  ProgramBuilder pb(set, "load");
  const Buffer wide = pb.persistent("wide", {6, 80}, DType::bf16, Role::weights);
  const auto moves = [&](DType from, Buffer to) { return ops::moves_bytes(from, set.spec(to)); };
  EXPECT_TRUE(moves(DType::bf16, wide));
  EXPECT_FALSE(moves(DType::f32, wide));
  EXPECT_TRUE(moves(DType::bf16, pb.columns(wide, 0, 32)));   // rows of 64 bytes
  EXPECT_FALSE(moves(DType::bf16, pb.columns(wide, 0, 31)));  // a kernel's
  EXPECT_TRUE(moves(DType::bf16, pb.rows(wide, 2, 3)));
}

TEST(RecordedCopy, DeclaresItsOperandsLaneAndCost) {
  ProgramSet set;
  ProgramBuilder pb(set, "load");
  const Buffer host = pb.persistent("host", {6, 8}, DType::f32, Role::weights, Tier::host);
  const Buffer slot = pb.temp("slot", {6, 8}, DType::bf16);
  const Buffer other = pb.temp("other", {6, 8}, DType::bf16);
  ops::copy(pb, host, slot, Lane::upload);
  ops::copy(pb, slot, other);
  const auto& instructions = set.programs[0].instructions;
  ASSERT_EQ(instructions.size(), 2u);
  EXPECT_EQ(instructions[0].lane, Lane::upload);
  EXPECT_EQ(instructions[0].cost.work, Work::transfer);
  EXPECT_EQ(instructions[0].reads, std::vector<Buffer>{host});
  EXPECT_EQ(instructions[0].writes, std::vector<Buffer>{slot});
  EXPECT_EQ(instructions[1].lane, Lane::compute);
  EXPECT_EQ(instructions[1].cost.work, Work::memory);
  EXPECT_THROW(ops::copy(pb, pb.rows(host, 0, 3), slot), Error);
  const Buffer file = pb.persistent("file", {6, 8}, DType::f32, Role::weights, Tier::disk);
  EXPECT_THROW(ops::copy(pb, file, slot), Error);
}

TEST(RecordedCast, MakesATemporaryAndFillsIt) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer x = pb.persistent("x", {2, 3}, DType::f32, Role::input);
  EXPECT_EQ(ops::cast(pb, x, DType::f32), x);
  EXPECT_TRUE(set.programs[0].instructions.empty());
  const Buffer y = ops::cast(pb, pb.columns(x, 1, 2), DType::bf16);
  EXPECT_EQ(pb.shape(y), (Shape{2, 2}));
  EXPECT_EQ(pb.dtype(y), DType::bf16);
  ASSERT_EQ(set.programs[0].instructions.size(), 1u);

  alignas(16) std::byte memory[64] = {};
  const float values[] = {1, 2, 3, 4, 5, 6};
  std::memcpy(memory, values, sizeof values);
  std::vector<std::uint64_t> offsets(set.buffers.size(), 0);
  offsets[y.id] = 32;
  const Instruction& now = set.programs[0].instructions[0];
  now.run(Bindings(set, offsets, {.base = {memory, nullptr}}, now, {}, {}));
  std::uint16_t got[4];
  std::memcpy(got, memory + 32, sizeof got);
  EXPECT_EQ(to_f32(got[0], DType::bf16), 2.0f);
  EXPECT_EQ(to_f32(got[1], DType::bf16), 3.0f);
  EXPECT_EQ(to_f32(got[2], DType::bf16), 5.0f);
  EXPECT_EQ(to_f32(got[3], DType::bf16), 6.0f);
}

}  // namespace
}  // namespace ballast::copy_test
