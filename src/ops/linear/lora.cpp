#include "ops/linear/lora.h"

#include "ops/dropout.h"
#include "ops/linear/linear.h"

namespace ballast::ops {
namespace {

void check_factor(ProgramBuilder& pb, Buffer factor, const char* name) {
  const DType t = pb.dtype(factor);
  check(pb.shape(factor).rank() == 2 && (t == DType::f32 || t == DType::bf16), "lora: {} is {} {}",
        name, t, pb.shape(factor));
}

DropoutOptions dropout_options(const LoraWeight& w, bool accumulate) {
  return {.probability = w.dropout.probability,
          .site = w.dropout.site,
          .first_row = w.dropout.first_row,
          .accumulate = accumulate};
}

// Of u in forward, of du in backward; drops of one kind have a stream of their own.
void drop_hidden(ProgramBuilder& pb, Buffer u, const LoraDropout& d) {
  const auto drop = [&](double probability, std::string_view stream, DropUnit unit) {
    if (probability == 0) return;
    RandomSite site = d.site;
    site.stream = fold(hash_of(stream));
    dropout_into(
        pb, u, u,
        {.probability = probability, .site = site, .first_row = d.first_row, .unit = unit});
  };
  drop(d.hidden, "hidden dropout", DropUnit::element);
  drop(d.ranks, "rank dropout", DropUnit::column);
  drop(d.module, "module dropout", DropUnit::matrix);
}

}  // namespace

Buffer lora_input(ProgramBuilder& pb, Buffer x, const LoraWeight& w) {
  if (w.dropout.probability == 0) return x;
  const auto scope = pb.scope("lora");
  return dropout(pb, x, dropout_options(w, false));
}

LoraOut lora_down(ProgramBuilder& pb, Buffer x, const LoraWeight& w, Buffer u) {
  const Buffer d = lora_input(pb, x, w);  // [R, K]
  const auto scope = pb.scope("lora");
  check_factor(pb, w.a, "A");
  if (!u) u = pb.temp("u", {pb.shape(x)[0], pb.shape(w.a)[0]}, pb.dtype(x));  // [R, r]
  linear_into(pb, d, {.weight = w.a}, u);
  drop_hidden(pb, u, w.dropout);
  return {d, u};
}

void lora_up(ProgramBuilder& pb, Buffer u, const LoraWeight& w, Buffer y) {
  const auto scope = pb.scope("lora");
  check_factor(pb, w.b, "B");
  check(pb.shape(u)[1] == pb.shape(w.b)[1], "lora: u is {}, B is {}", pb.shape(u), pb.shape(w.b));
  linear_into(pb, u, {.weight = w.b}, y, {.alpha = w.scale});
}

void lora_du(ProgramBuilder& pb, Buffer dy, const LoraWeight& w, Buffer du) {
  const auto scope = pb.scope("lora");
  check_factor(pb, w.b, "B");
  linear_dx_into(pb, dy, {.weight = w.b}, du, {.alpha = w.scale});
  drop_hidden(pb, du, w.dropout);
}

void lora_dx(ProgramBuilder& pb, Buffer du, const LoraWeight& w, Buffer dx, bool accumulate) {
  const auto scope = pb.scope("lora");
  check_factor(pb, w.a, "A");
  if (w.dropout.probability == 0) {
    linear_dx_into(pb, du, {.weight = w.a}, dx, {.accumulate = accumulate});
    return;
  }
  const Buffer dd = linear_dx(pb, du, {.weight = w.a}, DType::f32);  // [R, K]
  dropout_into(pb, dd, dx, dropout_options(w, accumulate));
}

void lora_dw(ProgramBuilder& pb, const LoraOut& kept, Buffer dy, Buffer du, const LoraWeight& w,
             const LoraGrads& grads) {
  const auto scope = pb.scope("lora");
  linear_dw(pb, kept.u, dy, grads.db, {}, w.scale);
  linear_dw(pb, kept.d, du, grads.da, {});
}

void lora_up_backward(ProgramBuilder& pb, Buffer u, Buffer dy, const LoraWeight& w, Buffer db,
                      Buffer du) {
  lora_du(pb, dy, w, du);
  const auto scope = pb.scope("lora");
  linear_dw(pb, u, dy, db, {}, w.scale);
}

void lora_down_backward(ProgramBuilder& pb, Buffer d, Buffer du, const LoraWeight& w, Buffer da,
                        Buffer dx, bool accumulate) {
  {
    const auto scope = pb.scope("lora");
    linear_dw(pb, d, du, da, {});
  }
  if (dx) lora_dx(pb, du, w, dx, accumulate);
}

}  // namespace ballast::ops
