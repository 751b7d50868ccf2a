#include "ops/kernels/patches.h"

#include "core/error.h"

namespace ballast::ops {

void check_patches(const char* op, const ConstTensorView& latent, const ConstTensorView& rows,
                   std::int64_t first_token) {
  const Shape& x = latent.shape;
  check(latent.dtype == DType::f32 && x.rank() == 4 && latent.strides[3] == 1,
        "{}: the latent is {} {} with strides {}", op, latent.dtype, x, latent.strides);
  check(x[2] % 2 == 0 && x[3] % 2 == 0, "{}: the latent {} has an odd height or width", op, x);
  check((rows.dtype == DType::f32 || rows.dtype == DType::bf16) && rows.shape.rank() == 2 &&
            rows.shape[1] == 4 * x[0] && rows.strides[1] == 1,
        "{}: the tokens are {} {}, the latent {}", op, rows.dtype, rows.shape, x);
  const std::int64_t tokens = x[1] * (x[2] / 2) * (x[3] / 2);
  check(first_token >= 0 && first_token + rows.shape[0] <= tokens, "{}: tokens {}+{} of {}", op,
        first_token, rows.shape[0], tokens);
}

Cost row_traffic(const ProgramBuilder& pb, Buffer rows) {
  const auto elements = static_cast<double>(pb.shape(rows).elements());
  return {.bytes = elements * static_cast<double>(size_of(pb.dtype(rows)) + size_of(DType::f32))};
}

}  // namespace ballast::ops
