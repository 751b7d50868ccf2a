#include "ops/linear/inlay.h"

#include "core/error.h"
#include "core/simd.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/row_checks.h"
#include "ops/linear/inlay_cuda.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void inlay(const Inlay& a, ThreadPool* pool))
}

void inlay(std::span<const Inlay> all, Stream stream) {
  check(all.size() <= kMostInlays, "inlay: {} matrices at once, at most {}", all.size(),
        kMostInlays);
  if (all.empty()) return;
  for (const Inlay& a : all) {
    check(a.from.shape.rank() == 2 && a.to.shape.rank() == 2, "inlay: {} into {}", a.from.shape,
          a.to.shape);
    check_rows("inlay: from", a.from, a.from.shape[0], a.from.shape[1]);
    check_rows("inlay: to", a.to, a.to.shape[0], a.to.shape[1]);
    check(a.column >= 0 && a.column + a.from.shape[1] <= a.to.shape[1] &&
              a.from.shape[0] <= a.to.shape[0],
          "inlay: {} at column {} of {}", a.from.shape, a.column, a.to.shape);
  }
  on_device(
      all[0].to.device,
      [&] {
        for (const Inlay& a : all) BALLAST_ISA_CALL(cpu, inlay, a, stream.pool);
      },
      [&] {
        cuda::Inlays inlays;
        for (const Inlay& a : all) {
          inlays.items[inlays.count++] = {cuda::view(a.from), cuda::view(a.to), a.column, a.factor};
        }
        cuda::inlay(inlays, stream.native);
      });
}

void inlay(ProgramBuilder& pb, std::vector<InlaidBuffer> all, Lane lane) {
  Access access = {.reads = {}, .writes = {}, .lane = lane};
  for (const InlaidBuffer& a : all) {
    access.reads.push_back(a.from);
    access.writes.push_back(a.to);
  }
  // What lies between the rows of a narrow margin is not moved.
  double bytes = 0;
  for (const InlaidBuffer& a : all) {
    for (const Buffer b : {a.from, a.to}) {
      bytes +=
          static_cast<double>(pb.shape(b).elements()) * static_cast<double>(size_of(pb.dtype(b)));
    }
  }
  access.cost = {.work = Work::memory, .bytes = bytes};
  pb.emit("inlay", std::move(access), [all = std::move(all)](const Bindings& b) {
    std::array<Inlay, kMostInlays> views;
    check(all.size() <= views.size(), "inlay: {} matrices at once", all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      views[i] = {.from = b.in(all[i].from),
                  .to = b.out(all[i].to),
                  .column = all[i].column,
                  .factor = all[i].factor};
    }
    inlay(std::span(views).first(all.size()), b.stream());
  });
}

}  // namespace ballast::ops
