#include "ops/lora.h"

#include "ops/linear.h"

namespace ballast::ops {
namespace {

void check_factors(ProgramBuilder& pb, const LoraWeight& w) {
  const Shape &a = pb.shape(w.a), &b = pb.shape(w.b);
  check(a.rank() == 2 && b.rank() == 2 && a[0] == b[1], "lora: A is {}, B is {}", a, b);
  check(pb.dtype(w.a) == DType::f32 && pb.dtype(w.b) == DType::f32, "lora: A is {}, B is {}",
        pb.dtype(w.a), pb.dtype(w.b));
}

}  // namespace

Buffer lora(ProgramBuilder& pb, Buffer x, const LoraWeight& w, Buffer y) {
  const auto scope = pb.scope("lora");
  check_factors(pb, w);
  const Buffer u = linear(pb, x, {.weight = w.a}, DType::f32);  // [R, r]
  linear_into(pb, u, {.weight = w.b}, y, {.alpha = w.scale, .accumulate = true});
  return u;
}

void lora_backward(ProgramBuilder& pb, Buffer x, Buffer u, Buffer dy, const LoraWeight& w,
                   const LoraGrads& grads, Buffer dx) {
  const auto scope = pb.scope("lora");
  check_factors(pb, w);
  linear_dw(pb, u, dy, grads.db, {}, w.scale);
  const Buffer du = pb.temp("du", pb.shape(u), DType::f32);  // [R, r]
  linear_dx_into(pb, dy, {.weight = w.b}, du, {.alpha = w.scale});
  linear_dw(pb, x, du, grads.da, {});
  if (dx) {
    linear_dx_into(pb, du, {.weight = w.a}, dx, {.accumulate = true});
  }
}

}  // namespace ballast::ops
