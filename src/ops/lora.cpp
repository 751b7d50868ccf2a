#include "ops/lora.h"

#include "ops/dropout.h"
#include "ops/linear.h"

namespace ballast::ops {
namespace {

void check_factors(ProgramBuilder& pb, const LoraWeight& w) {
  const Shape &a = pb.shape(w.a), &b = pb.shape(w.b);
  check(a.rank() == 2 && b.rank() == 2 && a[0] == b[1], "lora: A is {}, B is {}", a, b);
  for (const Buffer factor : {w.a, w.b}) {
    const DType t = pb.dtype(factor);
    check(t == DType::f32 || t == DType::bf16, "lora: A is {}, B is {}", pb.dtype(w.a),
          pb.dtype(w.b));
  }
}

DropoutOptions dropout_options(const LoraWeight& w, bool accumulate) {
  return {.probability = w.dropout.probability,
          .site = w.dropout.site,
          .first_row = w.dropout.first_row,
          .accumulate = accumulate};
}

}  // namespace

Buffer lora_input(ProgramBuilder& pb, Buffer x, const LoraWeight& w) {
  if (w.dropout.probability == 0) return x;
  const auto scope = pb.scope("lora");
  return dropout(pb, x, dropout_options(w, false));
}

LoraOut lora(ProgramBuilder& pb, Buffer x, const LoraWeight& w, Buffer y) {
  const Buffer d = lora_input(pb, x, w);  // [R, K]
  const auto scope = pb.scope("lora");
  check_factors(pb, w);
  const Buffer u = linear(pb, d, {.weight = w.a}, DType::f32);  // [R, r]
  linear_into(pb, u, {.weight = w.b}, y, {.alpha = w.scale, .accumulate = true});
  return {d, u};
}

void lora_backward(ProgramBuilder& pb, const LoraOut& kept, Buffer dy, const LoraWeight& w,
                   const LoraGrads& grads, Buffer dx) {
  const auto scope = pb.scope("lora");
  check_factors(pb, w);
  linear_dw(pb, kept.u, dy, grads.db, {}, w.scale);
  const Buffer du = pb.temp("du", pb.shape(kept.u), DType::f32);  // [R, r]
  linear_dx_into(pb, dy, {.weight = w.b}, du, {.alpha = w.scale});
  linear_dw(pb, kept.d, du, grads.da, {});
  if (!dx) return;
  if (w.dropout.probability == 0) {
    linear_dx_into(pb, du, {.weight = w.a}, dx, {.accumulate = true});
    return;
  }
  const Buffer dd = linear_dx(pb, du, {.weight = w.a}, DType::f32);  // [R, K]
  dropout_into(pb, dd, dx, dropout_options(w, true));
}

}  // namespace ballast::ops
