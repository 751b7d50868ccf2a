#include "ops/fill.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/convert.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "plan/bindings.h"
#include "tests/ref/fill.h"
#include "tests/support/test_device.h"

namespace ballast::fill_test {
namespace {

void expect_filled(const Shape& shape, const Shape& strides, DType t, float value,
                   const void* element) {
  std::int64_t last = 0;
  for (int i = 0; i < shape.rank(); ++i) last += (shape[i] - 1) * strides[i];
  for (const int threads : {0, 1, 3}) {
    const std::size_t start = threads == 3 ? 16 : 1;  // aligned to anything, to nothing
    const std::size_t bytes =
        (shape.elements() == 0 ? 0 : to_size(last + 1) * size_of(t)) + start + 2;
    support::DeviceVector<std::byte> got(bytes, std::byte{0x5a}), want = got;
    ref::fill(TensorView(want.data() + start, t, shape, strides), element);
    const Device device = threads == 0 ? Device::cpu : support::test_device();
    const ops::Fill a = {.to = TensorView(got.data() + start, t, shape, strides, device),
                         .value = value};
    if (threads == 0) {
      ops::fill(a, {});  // without a pool, on the CPU
    } else {
      ThreadPool pool(threads);
      ops::fill(a, support::test_stream(pool));
    }
    support::device_memory_is_read();
    EXPECT_TRUE(got == want) << name_of(t) << " " << threads << " threads";
  }
}

TEST(Fill, WritesEveryElementAndNothingElse) {
  const float f32 = 0.1f;
  const double f64 = static_cast<double>(0.1f);
  const auto bf16 = static_cast<std::uint16_t>(from_f32(0.1f, DType::bf16));
  const auto e4m3 = static_cast<std::uint8_t>(from_f32(0.1f, DType::f8_e4m3));
  const struct {
    Shape shape, strides;
  } views[] = {{{}, {}},
               {{0}, {1}},
               {{1}, {5}},
               {{333}, {1}},
               {{100}, {3}},
               {{4, 5}, {9, 1}},
               {{4, 5}, {1, 4}},
               {{2, 3, 4, 5}, {200, 40, 10, 2}},
               {{2, 140001}, {140003, 1}}};
  for (const auto& v : views) {
    expect_filled(v.shape, v.strides, DType::f32, 0.1f, &f32);
    expect_filled(v.shape, v.strides, DType::f64, 0.1f, &f64);
    expect_filled(v.shape, v.strides, DType::bf16, 0.1f, &bf16);
    expect_filled(v.shape, v.strides, DType::f8_e4m3, 0.1f, &e4m3);
  }
}

TEST(Fill, IntegersTakeWhatTheyHoldExactly) {
  const std::int64_t minus = -5;
  for (const DType t : {DType::i8, DType::i16, DType::i32, DType::i64}) {
    expect_filled({7}, {1}, t, -5.0f, &minus);
  }
  const std::uint64_t most = 255;
  for (const DType t : {DType::u8, DType::u16, DType::u32, DType::u64, DType::i16}) {
    expect_filled({7}, {2}, t, 255.0f, &most);
  }
  const std::uint8_t truth = 1;
  expect_filled({7}, {1}, DType::boolean, 1.0f, &truth);
  std::uint64_t memory = 0;
  const auto fill_one = [&](DType t, float value) {
    ops::fill({.to = TensorView(reinterpret_cast<std::byte*>(&memory), t, {1}), .value = value},
              {});
  };
  EXPECT_THROW(fill_one(DType::i8, 128.0f), Error);
  EXPECT_NO_THROW(fill_one(DType::i8, -128.0f));
  EXPECT_THROW(fill_one(DType::u8, -1.0f), Error);
  EXPECT_THROW(fill_one(DType::i32, 0.5f), Error);
  EXPECT_THROW(fill_one(DType::boolean, 2.0f), Error);
  EXPECT_THROW(fill_one(DType::i64, 0x1p63f), Error);
}

TEST(RecordedFill, WritesItsBufferOnly) {
  ProgramSet set;
  ProgramBuilder pb(set, "p");
  const Buffer b = pb.persistent("b", {4}, DType::f32, Role::gradient);
  ops::fill(pb, pb.rows(b, 1, 2), 3.0f);
  const Instruction& now = set.programs[0].instructions.at(0);
  EXPECT_TRUE(now.reads.empty());
  ASSERT_EQ(now.writes.size(), 1u);
  float memory[4] = {9, 9, 9, 9};
  const std::vector<std::uint64_t> offsets(set.buffers.size(), 0);
  now.run(Bindings(set, offsets, {.base = {reinterpret_cast<std::byte*>(memory), nullptr}}, now, {},
                   {}));
  EXPECT_EQ(std::vector<float>(memory, memory + 4), (std::vector<float>{9, 3, 3, 9}));
}

}  // namespace
}  // namespace ballast::fill_test
