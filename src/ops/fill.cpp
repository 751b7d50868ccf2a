#include "ops/fill.h"

#include <cmath>
#include <cstring>

#include "core/convert.h"
#include "core/simd.h"
#include "ops/fill_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/strided_walk.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void fill(const StridedWalk& walk, std::byte* to, std::size_t size,
                          std::uint64_t pattern, ThreadPool* pool))
}

namespace {

// The bits of value as an element, in the low bytes.
std::uint64_t pattern_of(float value, DType t) {
  std::uint64_t pattern = 0;
  if (info(t).floating) {
    convert(&value, DType::f32, &pattern, t, 1);
    return pattern;
  }
  const bool is_signed = t == DType::i8 || t == DType::i16 || t == DType::i32 || t == DType::i64;
  const int bits = t == DType::boolean ? 1 : static_cast<int>(size_of(t)) * 8;
  const float above = std::ldexp(1.0f, is_signed ? bits - 1 : bits);
  const float least = is_signed ? -above : 0.0f;
  check(value == std::trunc(value) && value >= least && value < above, "fill: no {} is {}", t,
        value);
  if (value < 0) return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  return static_cast<std::uint64_t>(value);
}

}  // namespace

void fill(const Fill& a, Stream stream) {
  const std::uint64_t pattern = pattern_of(a.value, a.to.dtype);
  if (a.to.elements() == 0) return;
  on_device(
      a.to.device,
      [&] {
        const StridedWalk walk = walk_of(a.to.shape, a.to.strides, a.to.strides);
        BALLAST_ISA_CALL(cpu, fill, walk, a.to.data, size_of(a.to.dtype), pattern, stream.pool);
      },
      [&] { cuda::fill({.to = a.to, .pattern = pattern}, stream.native); });
}

void fill(ProgramBuilder& pb, Buffer to, float value, Lane lane) {
  pb.emit("fill", {.reads = {}, .writes = {to}, .lane = lane},
          [=](const Bindings& b) { fill({.to = b.out(to), .value = value}, b.stream()); });
}

}  // namespace ballast::ops
