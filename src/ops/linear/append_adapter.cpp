#include "ops/linear/append_adapter.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/row_checks.h"
#include "ops/linear/append_adapter_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void append_adapter(const AppendAdapter& a, ThreadPool* pool))
}

void append_adapter(std::span<const AppendAdapter> all, Stream stream) {
  check(all.size() <= kMaxAppended, "append_adapter: {} matrices at once, at most {}", all.size(),
        kMaxAppended);
  if (all.empty()) return;
  for (const AppendAdapter& a : all) {
    check(a.from.shape.rank() == 2 && a.to.shape.rank() == 2, "append_adapter: {} into {}",
          a.from.shape, a.to.shape);
    check_rows("append_adapter: from", a.from, a.from.shape[0], a.from.shape[1]);
    check_rows("append_adapter: to", a.to, a.to.shape[0], a.to.shape[1]);
    check(a.column >= 0 && a.column + a.from.shape[1] <= a.to.shape[1] &&
              a.from.shape[0] <= a.to.shape[0],
          "append_adapter: {} at column {} of {}", a.from.shape, a.column, a.to.shape);
  }
  on_device(
      all[0].to.device,
      [&] {
        for (const AppendAdapter& a : all) BALLAST_ISA_CALL(cpu, append_adapter, a, stream.pool);
      },
      [&] {
        cuda::AppendItems adapter_copies;
        for (const AppendAdapter& a : all) {
          adapter_copies.items[adapter_copies.count++] = {a.from, a.to, a.column, a.factor};
        }
        cuda::append_adapter(adapter_copies, stream.native);
      });
}

void append_adapter(ProgramBuilder& pb, std::vector<AppendAdapterBuffers> all, Lane lane) {
  Access access = {.reads = {}, .writes = {}, .lane = lane};
  for (const AppendAdapterBuffers& a : all) {
    access.reads.push_back(a.from);
    access.writes.push_back(a.to);
  }
  // What lies between the rows of a narrow row padding is not moved.
  double bytes = 0;
  for (const AppendAdapterBuffers& a : all) {
    for (const Buffer b : {a.from, a.to}) {
      bytes +=
          static_cast<double>(pb.shape(b).elements()) * static_cast<double>(size_of(pb.dtype(b)));
    }
  }
  access.cost = {.work = Work::memory, .bytes = bytes};
  pb.emit("append_adapter", std::move(access), [all = std::move(all)](const Bindings& b) {
    std::array<AppendAdapter, kMaxAppended> views;
    check(all.size() <= views.size(), "append_adapter: {} matrices at once", all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      views[i] = {.from = b.in(all[i].from),
                  .to = b.out(all[i].to),
                  .column = all[i].column,
                  .factor = all[i].factor};
    }
    append_adapter(std::span(views).first(all.size()), b.stream());
  });
}

}  // namespace ballast::ops
