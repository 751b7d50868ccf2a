#include "ops/copy.h"

#include "core/simd.h"
#include "ops/copy_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/strided_walk.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void copy(const StridedWalk& walk, const std::byte* from, DType from_type,
                          std::byte* to, DType to_type, Rounding rounding, ThreadPool* pool))
}

void copy(const Copy& a, Stream stream) {
  check(a.from.shape == a.to.shape, "copy: from is {}, to is {}", a.from.shape, a.to.shape);
  check(convertible(a.from.dtype, a.to.dtype), "copy: {} does not convert to {}", a.from.dtype,
        a.to.dtype);
  if (a.to.elements() == 0) return;
  for (int i = 0; i < a.to.shape.rank(); ++i) {
    check(a.to.strides[i] != 0 || a.to.shape[i] <= 1, "copy: to {} writes an element twice, {}",
          a.to.shape, a.to.strides);
  }
  const Device where = a.from.device == Device::cpu ? a.to.device : a.from.device;
  on_device(
      where,
      [&] {
        const StridedWalk walk = walk_of(a.to.shape, a.from.strides, a.to.strides);
        BALLAST_ISA_CALL(cpu, copy, walk, a.from.data, a.from.dtype, a.to.data, a.to.dtype,
                         a.rounding, stream.pool);
      },
      [&] {
        cuda::copy({.from = a.from,
                    .to = a.to,
                    .through_engine = a.from.device != a.to.device,
                    .saturating = a.rounding == Rounding::saturating},
                   stream.native);
      });
}

bool moves_bytes(DType from, const BufferSpec& to) {
  if (from != to.dtype) return false;
  const Shape shape = to.shape, strides = to.strides;
  if (strides == row_major(shape)) return true;
  if (shape.rank() != 2 || strides[1] != 1) return false;
  const auto size = static_cast<std::int64_t>(size_of(from));
  return cuda::engine_takes({.width = shape[1] * size, .pitch = strides[0] * size});
}

void copy(ProgramBuilder& pb, Buffer from, Buffer to, Lane lane) {
  check(pb.shape(from) == pb.shape(to), "copy: from is {}, to is {}", pb.shape(from), pb.shape(to));
  check(convertible(pb.dtype(from), pb.dtype(to)), "copy: {} does not convert to {}",
        pb.dtype(from), pb.dtype(to));
  check(pb.tier(from) != Tier::disk && pb.tier(to) != Tier::disk,
        "copy: {} to {}: files have reads and writes of their own", name_of(pb.tier(from)),
        name_of(pb.tier(to)));
  // What lies between the rows of a narrow view is not moved.
  const double bytes = static_cast<double>(pb.shape(to).elements()) *
                       static_cast<double>(size_of(pb.dtype(from)) + size_of(pb.dtype(to)));
  const Cost cost = {.work = pb.tier(from) == pb.tier(to) ? Work::memory : Work::transfer,
                     .bytes = bytes};
  pb.emit("copy", {.reads = {from}, .writes = {to}, .lane = lane, .cost = cost},
          [=](const Bindings& b) { copy({.from = b.in(from), .to = b.out(to)}, b.stream()); });
}

Buffer cast(ProgramBuilder& pb, Buffer x, DType dtype) {
  if (pb.dtype(x) == dtype) return x;
  const Buffer y = pb.temp("cast", pb.shape(x), dtype);
  copy(pb, x, y);
  return y;
}

}  // namespace ballast::ops
