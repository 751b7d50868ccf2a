#include "ops/rope_3d.h"

#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/rope_3d_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void rope_3d(const Rope3d& a, ThreadPool& pool))
BALLAST_PER_ISA(void rope_3d_table(const Rope3dTable& a, ThreadPool& pool))
}  // namespace cpu

namespace {

constexpr std::int64_t kMaxPositions = 1024;

void check_grid(const std::array<std::int64_t, 3>& grid) {
  for (const std::int64_t n : grid) {
    if (n > kMaxPositions) {
      fail(ErrorCode::input,
           fmt::format("a token grid of {} x {} x {} is too large: the model knows {} positions "
                       "along each axis",
                       grid[0], grid[1], grid[2], kMaxPositions),
           {{"fewer frames or a smaller size", "keeps every axis within the limit"}});
    }
    check(n >= 0, "rope_3d_table: a grid of {} x {} x {}", grid[0], grid[1], grid[2]);
  }
}

void check_table(std::string_view what, const ConstTensorView& t) {
  check(t.shape.rank() == 3 && t.shape[2] == 2, "{}: the table is {}", what, t.shape);
  check(t.dtype == DType::f32, "{}: the table is {}", what, t.dtype);
  check(t.elements() == 0 || (t.strides[2] == 1 && (t.strides[1] == 2 || t.shape[1] == 1)),
        "{}: the table's rows are not contiguous", what);
}

void check_heads(std::string_view what, const ConstTensorView& v, const Shape& shape) {
  check(v.shape == shape, "{} is {}, expected {}", what, v.shape, shape);
  check(v.dtype == DType::f32 || v.dtype == DType::bf16, "{} is {}, expected f32 or bf16", what,
        v.dtype);
  check(v.elements() == 0 || v.strides[2] == 1, "{} has inner stride {}", what, v.strides.back());
}

}  // namespace

void rope_3d(const Rope3d& a, Stream stream) {
  check(a.x.shape.rank() == 3, "rope_3d: x is {}, expected [L, H, D]", a.x.shape);
  check_heads("rope_3d: x", a.x, a.x.shape);
  check_heads("rope_3d: y", a.y, a.x.shape);
  check_table("rope_3d", a.table);
  check(a.table.shape[0] == a.x.shape[0] && 2 * a.table.shape[1] == a.x.shape[2],
        "rope_3d: x is {}, the table {}", a.x.shape, a.table.shape);
  on_device(
      a.x.device, [&] { BALLAST_ISA_CALL(cpu, rope_3d, a, *stream.pool); },
      [&] {
        cuda::rope_3d({.x = a.x, .table = a.table, .y = a.y, .inverse = a.inverse}, stream.native);
      });
}

void rope_3d_table(const Rope3dTable& a, Stream stream) {
  check_grid(a.grid);
  check_table("rope_3d_table", a.table);
  check(a.first_token >= 0 && a.first_token + a.table.shape[0] <= a.grid[0] * a.grid[1] * a.grid[2],
        "rope_3d_table: rows {}+{} of a grid of {} x {} x {}", a.first_token, a.table.shape[0],
        a.grid[0], a.grid[1], a.grid[2]);
  on_device(
      a.table.device, [&] { BALLAST_ISA_CALL(cpu, rope_3d_table, a, *stream.pool); },
      [&] {
        cuda::rope_3d_table({.grid = {a.grid[0], a.grid[1], a.grid[2]},
                             .first_token = a.first_token,
                             .table = a.table},
                            stream.native);
      });
}

Buffer rope_3d_table(ProgramBuilder& pb, std::array<std::int64_t, 3> grid,
                     std::int64_t head_width) {
  check(head_width % 2 == 0, "rope_3d_table: a head of {} elements has no pairs", head_width);
  const Buffer table =
      pb.temp("rope_table", {grid[0] * grid[1] * grid[2], head_width / 2, 2}, DType::f32);
  rope_3d_table_into(pb, grid, table);
  return table;
}

void rope_3d_table_into(ProgramBuilder& pb, std::array<std::int64_t, 3> grid, Buffer table,
                        std::int64_t first_token) {
  check_grid(grid);  // while recording: the plan is refused, not the step
  pb.emit("rope_3d_table", {.reads = {}, .writes = {table}}, [=](const Bindings& b) {
    rope_3d_table({.grid = grid, .first_token = first_token, .table = b.out(table)}, b.stream());
  });
}

}  // namespace ballast::ops
