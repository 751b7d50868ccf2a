#include "ops/modulation_table.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/modulation_table_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void modulation_table(const ModulationTable& a, ThreadPool& pool))
BALLAST_PER_ISA(void modulation_table_backward(const ModulationTableBackward& a, ThreadPool& pool))
}  // namespace cpu

namespace {

// table is [K, T, C]; modulation and e must be of the shapes that go with it.
void check_shapes(const char* op, const ConstTensorView& table, const ConstTensorView& modulation,
                  const ConstTensorView& e, bool shared_e) {
  check(table.dtype == DType::f32 && table.shape.rank() == 3 && table.contiguous(),
        "{}: the table is {} {}", op, table.dtype, table.shape);
  const std::int64_t k = table.shape[0], t = table.shape[1], c = table.shape[2];
  if (modulation) {
    const Shape& s = modulation.shape;
    check((s == Shape{k, c} || s == Shape{1, k, c}) && modulation.contiguous(),
          "{}: modulation is {}, the table {}", op, s, table.shape);
  }
  if (e) {
    check(e.dtype == DType::f32 && e.shape == Shape{t, shared_e ? c : k * c} && e.contiguous(),
          "{}: e is {} {}, the table {}, shared_e {}", op, e.dtype, e.shape, table.shape, shared_e);
  }
}

}  // namespace

void modulation_table(const ModulationTable& a, Stream stream) {
  check_shapes("modulation_table", a.m, a.modulation, a.e, a.shared_e);
  const DType t = a.modulation.dtype;
  check(t == DType::f32 || t == DType::bf16 || t == DType::f16,
        "modulation_table: modulation is {}", t);
  on_device(
      a.m.device, [&] { BALLAST_ISA_CALL(cpu, modulation_table, a, *stream.pool); },
      [&] {
        cuda::modulation_table(
            {.modulation = a.modulation, .e = a.e, .m = a.m, .shared_e = a.shared_e},
            stream.native);
      });
}

void modulation_table_backward(const ModulationTableBackward& a, Stream stream) {
  check_shapes("modulation_table_backward", a.dm, a.dmodulation, a.de, a.shared_e);
  check(!a.dmodulation || a.dmodulation.dtype == DType::f32,
        "modulation_table_backward: dmodulation is {}", a.dmodulation.dtype);
  on_device(
      a.dm.device, [&] { BALLAST_ISA_CALL(cpu, modulation_table_backward, a, *stream.pool); },
      [&] {
        cuda::modulation_table_backward(
            {.dm = a.dm, .de = a.de, .dmodulation = a.dmodulation, .shared_e = a.shared_e},
            stream.native);
      });
}

Buffer modulation_table(ProgramBuilder& pb, Buffer modulation, Buffer e, std::int64_t rows,
                        bool shared_e) {
  const std::int64_t timesteps = pb.shape(e)[0], width = pb.shape(modulation).back();
  const Buffer m = pb.temp("modulation", {rows, timesteps, width}, DType::f32);
  pb.emit("modulation_table", {.reads = {modulation, e}, .writes = {m}}, [=](const Bindings& b) {
    modulation_table(
        {.modulation = b.in(modulation), .e = b.in(e), .m = b.out(m), .shared_e = shared_e},
        b.stream());
  });
  return m;
}

void modulation_table_backward(ProgramBuilder& pb, Buffer dm, bool shared_e, Buffer de,
                               Buffer dmodulation) {
  pb.emit("modulation_table_backward",
          {.reads = {dm, de, dmodulation}, .writes = {de, dmodulation}}, [=](const Bindings& b) {
            modulation_table_backward({.dm = b.in(dm),
                                       .de = b.out_if(de),
                                       .dmodulation = b.out_if(dmodulation),
                                       .shared_e = shared_e},
                                      b.stream());
          });
}

}  // namespace ballast::ops
