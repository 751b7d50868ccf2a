#include "ops/kernels/update_rounding.h"

#include "core/error.h"

namespace ballast::ops {

ParameterRounding bind(const Bindings& b, const RecordedRounding& r) {
  return {.rounding = r.rounding,
          .carry = b.out_if(r.carry),
          .random = {.seed = fold(b.step().seed),
                     .stream = fold(hash_of("update")),
                     .step = static_cast<std::uint32_t>(b.step().step),
                     .site = r.site},
          .first_element = r.first_element};
}

void check_parameter(const char* op, const ConstTensorView& p, const ParameterRounding& r) {
  check((p.dtype == DType::f32 || p.dtype == DType::bf16) && p.contiguous(),
        "{}: p is {} {}, expected contiguous f32 or bf16", op, p.dtype, p.shape);
  check(r.first_element >= 0, "{}: p begins at element {}", op, r.first_element);
  if (p.dtype == DType::f32 || r.rounding != UpdateRounding::kahan) return;
  check(r.carry.dtype == p.dtype && r.carry.elements() == p.elements() && r.carry.contiguous() &&
            (r.carry || p.elements() == 0),
        "{}: the carry is {} {}, p is {} {}", op, r.carry.dtype, r.carry.shape, p.dtype, p.shape);
}

void check_beside_parameter(const char* op, const char* name, const ConstTensorView& t,
                            const ConstTensorView& p) {
  check((t.dtype == DType::f32 || t.dtype == DType::bf16) && t.elements() == p.elements() &&
            t.contiguous(),
        "{}: {} is {} {}, p is {} {}", op, name, t.dtype, t.shape, p.dtype, p.shape);
}

void check_grad_scale(const char* op, const ConstTensorView& t) {
  check(!t || (t.dtype == DType::f32 && t.elements() == 1), "{}: grad_scale is {} {}", op, t.dtype,
        t.shape);
}

}  // namespace ballast::ops
