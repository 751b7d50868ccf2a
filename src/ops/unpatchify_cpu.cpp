#include "ops/kernels/patches_simd.h"
#include "ops/unpatchify.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

using simd::BALLAST_ISA::with_dtype;

PatchRows output_columns(const ConstTensorView& v, std::int64_t first_token) {
  return {.first_token = first_token, .channel_step = 1, .place_step = v.shape[0]};
}

}  // namespace

void unpatchify(const Unpatchify& a, ThreadPool& pool) {
  with_dtype<DType::f32, DType::bf16>(a.y.dtype, [&](auto tag) {
    rows_to_latent<tag>(a.y, a.v, output_columns(a.v, a.first_token), pool);
  });
}

void unpatchify_backward(const UnpatchifyBackward& a, ThreadPool& pool) {
  with_dtype<DType::f32, DType::bf16>(a.dy.dtype, [&](auto tag) {
    latent_to_rows<tag>(a.dv, a.dy, output_columns(a.dv, a.first_token), pool);
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
