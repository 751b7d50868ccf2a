#pragma once

#include <array>
#include <cstdint>

#include "core/random.h"
#include "core/tensor.h"
#include "ops/kernels/random_site.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// Per head, with S = scale q k^T + bias over the keys at positions < kv_length, and with causal
// those at positions <= the query's own:
//   lse = log(sum(e^S)) by row (natural logarithm),  o = e^(S - lse) v.
// The bias of query i and key j depends on j - i alone.
// q, k, v, o are all f32 or all bf16, strided in L and H; D is dense. Sums are kept in f32; no
// buffer grows with Lq * Lk. kv_length = 0 gives o = 0, lse = -inf. o may not share memory with q,
// k or v.
//
// The same bits for any number of threads, for any grouping of heads, and for queries that come in
// pieces (cut anywhere): keys are added up in fixed tiles from position 0. On the GPU cuDNN
// computes bf16 where D is a multiple of 8, all operands are aligned to 16 bytes, and there is
// neither bias nor mask (it rounds the weights to bf16, and a piece of a single query may differ);
// D is at most 256 there.
//
// With a dropout, o = (keep P / (1 - p)) v: the word of head h, query i and key j is element
// ((h << 20) + i << 20) + j of the source, so neither groups of heads nor padding change what is
// dropped. lse is of the scores before that.
struct AttentionDropout {
  double probability = 0;  // p in [0, 1)
  RandomSource source = {};
  std::int64_t first_head = 0;  // of the operands, among all heads
};

// Heads of several samples in one call, those of a sample behind those of the one before it (rows
// of q are then positions with the samples side by side). With whole_scores on the GPU only; the
// recorded form cuts a call into samples elsewhere.
struct AttentionSamples {
  static constexpr int kMax = 64;
  std::int64_t heads = 0;  // of a sample, which share the bias [heads, Lq + Lk - 1]; 0: one sample
  std::int64_t first = 0;  // of all samples' heads: the operands' first
  std::array<std::int32_t, kMax> lengths = {};  // kv_length of each sample
  std::array<std::uint32_t, kMax> sites = {};   // RandomSource::site of each
};

struct Attention {
  ConstTensorView q;     // [Lq, H, D]
  ConstTensorView k, v;  // [Lk, H, D]
  TensorView o;          // [Lq, H, D]
  TensorView lse;        // [H, Lq] f32, kept for backward
  TensorView workspace;  // attention_workspace() bytes
  float scale = 1;
  std::int64_t kv_length = 0;  // <= Lk
  ConstTensorView bias = {};   // [H, Lq + Lk - 1] f32: entry j - i + Lq - 1; empty: none
  bool causal = false;
  AttentionDropout dropout = {};
  // On the GPU: by kernels for short sequences, that have everything (attention_scores_workspace()
  // bytes): fused ones for bf16 and D = 64, else matrix products, with all scores of the call in
  // the workspace. Elsewhere it makes no difference.
  bool whole_scores = false;
  AttentionSamples samples = {};
};
void attention(const Attention& a, Stream stream);

// With P = e^(S - lse), delta = rowsum(dout * o), dS = P * (dout v^T - delta):
//   dv = P^T dout,  dk = scale dS^T q,  dq = scale dS k,  dbias[j - i + Lq - 1] += dS[i, j].
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
  ConstTensorView bias = {};  // as above
  TensorView dbias = {};      // [H, Lq + Lk - 1] f32, added to; empty: not wanted
  bool causal = false;
  AttentionDropout dropout = {};
  bool whole_scores = false;  // as above
  AttentionSamples samples = {};
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

// The same on a GPU with whole_scores, which GPU calls with a dropout need. Without fused kernels
// it grows with Lq * Lk.
bool attention_is_fused(std::int64_t width, DType dtype);
std::int64_t attention_scores_workspace(const Shape& q, std::int64_t keys, DType dtype);
std::int64_t attention_backward_scores_workspace(const Shape& q, std::int64_t keys, DType dtype);

struct AttentionOptions {
  float scale;
  std::int64_t kv_length = -1;       // -1: all keys
  std::int64_t heads_per_group = 0;  // 0: all heads in one instruction; bounds the workspace
  Buffer bias = {};                  // [H, Lq + Lk - 1] f32; invalid: none
  Buffer dbias = {};                 // the same, added to by backward; invalid: not wanted
  bool causal = false;
  // Forward only: kv_length is the number of the run's step (StepValues) plus one. Keys come one by
  // one, run by run.
  bool grows = false;
  // The heads are those of so many samples (AttentionSamples). They share bias and dbias, whose
  // rows are a sample's heads.
  std::int64_t samples = 1;
  Buffer lengths = {};  // [samples] i32 in host memory: kv_length of each, read in every run
  bool whole_scores = false;
  double dropout = 0;
  RandomSite site = {};  // of the first sample
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
// dq may be q itself, dk k and dv v, and nothing else that is read: a group of heads then has its
// gradients in memory of its own until it is done with its q, k and v. Where heads go in groups
// that is less than the gradients of all.
void attention_backward(ProgramBuilder& pb, const AttentionSaved& saved, Buffer dout, Buffer dq,
                        Buffer dk, Buffer dv, const AttentionOptions& options);

}  // namespace ballast::ops
