#include "ops/kernels/patches_simd.h"
#include "ops/patchify.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

using simd::BALLAST_ISA::with_dtype;

PatchRows input_columns(const ConstTensorView&, std::int64_t first_token) {
  return {.first_token = first_token, .channel_step = 4, .place_step = 1};
}

}  // namespace

void patchify(const Patchify& a, ThreadPool& pool) {
  with_dtype<DType::f32, DType::bf16>(a.tokens.dtype, [&](auto tag) {
    latent_to_rows<tag>(a.latent, a.tokens, input_columns(a.latent, a.first_token), pool);
  });
}

void patchify_backward(const PatchifyBackward& a, ThreadPool& pool) {
  with_dtype<DType::f32, DType::bf16>(a.dtokens.dtype, [&](auto tag) {
    rows_to_latent<tag>(a.dtokens, a.dlatent, input_columns(a.dlatent, a.first_token), pool);
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
