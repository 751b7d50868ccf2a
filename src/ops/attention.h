#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Per head, with S = scale q k^T over the keys at positions < kv_length:
//   lse = log(sum(e^S)) by row (natural logarithm),  o = e^(S - lse) v.
// q, k, v, o are all f32 or all bf16, strided in L and H; D is dense. Sums are kept in f32; no
// buffer grows with Lq * Lk. kv_length = 0 gives o = 0, lse = -inf. o may not share memory with q,
// k or v.
//
// The same bits for any number of threads, for any grouping of heads, and for queries that come in
// pieces (cut anywhere): keys are added up in fixed tiles from position 0. On the GPU cuDNN
// computes bf16 where D is a multiple of 8 and all operands are aligned to 16 bytes (it rounds the
// weights to bf16, and a piece of a single query may differ); D is at most 256 there.
struct Attention {
  ConstTensorView q;     // [Lq, H, D]
  ConstTensorView k, v;  // [Lk, H, D]
  TensorView o;          // [Lq, H, D]
  TensorView lse;        // [H, Lq] f32, kept for backward
  TensorView workspace;  // attention_workspace() bytes
  float scale = 1;
  std::int64_t kv_length = 0;  // <= Lk
};
void attention(const Attention& a, Stream stream);

// With P = e^(S - lse), delta = rowsum(dout * o), dS = P * (dout v^T - delta):
//   dv = P^T dout,  dk = scale dS^T q,  dq = scale dS k.
// Overwrites dq, dk, dv; rows of dk and dv at positions >= kv_length become 0. One dtype for all
// but lse. A bf16 dq is summed in f32 (in the workspace) and rounded once. Heads are the unit of
// parallel work on the CPU: a call with fewer heads than threads leaves threads idle. On the GPU
// the workspace of a deterministic bf16 gradient grows with Lq * Lk: groups of heads bound it.
struct AttentionBackward {
  ConstTensorView q, k, v, o, lse, dout;  // dout: [Lq, H, D], the others as above
  TensorView dq, dk, dv;                  // as q, k, v; may not share memory with any other
  TensorView workspace;                   // attention_backward_workspace() bytes
  float scale = 1;
  std::int64_t kv_length = 0;
  bool deterministic = true;  // see Backend: on the GPU false lets the bits of dq vary
};
void attention_backward(const AttentionBackward& a, Stream stream);

// Make what the same call with the same addresses must not make in a run: cuDNN's plan for it.
// Nothing on the CPU.
void prepare_attention(const Attention& a, Stream stream);
void prepare_attention_backward(const AttentionBackward& a, Stream stream);

// Bytes of scratch memory for q of this shape, [Lq, H, D], and so many keys (kv_length).
std::int64_t attention_workspace(const Shape& q, DType dtype, const Backend& backend);
std::int64_t attention_backward_workspace(const Shape& q, std::int64_t keys, DType dtype,
                                          const Backend& backend);

struct AttentionOptions {
  float scale;
  std::int64_t kv_length = -1;       // -1: all keys
  std::int64_t heads_per_group = 0;  // 0: all heads in one instruction; bounds the workspace
};
struct AttentionOut {
  Buffer o, lse;
};
AttentionOut attention(ProgramBuilder& pb, Buffer q, Buffer k, Buffer v,
                       const AttentionOptions& options);
void attention_into(ProgramBuilder& pb, Buffer q, Buffer k, Buffer v, Buffer o, Buffer lse,
                    const AttentionOptions& options);

struct AttentionSaved {
  Buffer q, k, v, o, lse;
};
void attention_backward(ProgramBuilder& pb, const AttentionSaved& saved, Buffer dout, Buffer dq,
                        Buffer dk, Buffer dv, const AttentionOptions& options);

}  // namespace ballast::ops
