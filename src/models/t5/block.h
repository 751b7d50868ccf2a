#pragma once

#include <string>

#include "models/t5/config.h"
#include "nn/adapted_linear.h"
#include "nn/memory_policy.h"
#include "nn/precision.h"
#include "ops/attention/attention.h"
#include "ops/dropout.h"
#include "plan/program_builder.h"

namespace ballast::t5 {

// The weights of one block while they are in reach, and where their gradients go.
struct AttentionInUse {
  Gain norm;
  AdaptedLinear q, k, v, o;
};
struct FeedForwardInUse {
  Gain norm;
  AdaptedLinear wi_0, wi_1, wo;
};
struct BlockInUse {
  AttentionInUse self, cross;
  FeedForwardInUse ffn;
};

// What backward reads of the parts of a block. Invalid handles: computed again by forward, which
// takes attention's output from here where it is valid.
struct AttentionKept {
  Buffer x, u, r;  // [L, C] input, [L, C] its norm, [L]
  Buffer q, k, v;  // [L, H, D]; of the encoder's states in cross-attention
  Buffer o, lse;   // [L, H, D], [H, L]; of several samples [samples H, L / samples]
};
struct FeedForwardKept {
  Buffer x, u, r;
  Buffer a, b, z;  // [L, F]: wi_0 u, wi_1 u, and what wo reads
};
struct BlockKept {
  AttentionKept self, cross;
  FeedForwardKept ffn;
};

// The scores' bias of self-attention, and its gradient (added to; invalid: not wanted).
struct ScoreBias {
  Buffer bias, dbias;  // [H, 2 L - 1]
};

// What the rows of a call are: those of some samples, equally many of each, by position: the first
// rows of all samples, then their second ones. So padding stands at the end, and heads of all
// samples are one batch of products. Only attention tells samples apart.
struct RowsOfSamples {
  std::int64_t samples = 1;
  std::int64_t heads_at_once = 0;  // of all samples', in attention where the policy has no wish
  Buffer lengths = {};            // [samples] i32 in host memory: keys that take part; invalid: all
  bool whole_scores = false;      // see ops::AttentionOptions
  double dropout = 0;             // of what sublayers add, of hidden units and attention weights
  std::string site = {};          // names the block among all that drop
  std::int64_t first_sample = 0;  // within the program

  ops::DropoutOptions drop(const char* what) const;
};

// Heads that a call of attention takes at once with whole_scores: all (0), or, without fused
// kernels for them, so many that most of their scores stay in a GPU's cache between the products.
std::int64_t heads_at_once(const Config& config, const Precision& precision, std::int64_t queries,
                           std::int64_t keys);

// The parts of T5's blocks: every one is y = x + f(norm(x)), row by row but for
// attention. Records forward and backward; owns nothing. What the policy chooses never changes a
// bit.
class BlockLayers {
 public:
  BlockLayers(const Config& config, const MemoryPolicy& policy, const Precision& precision)
      : config_(config), policy_(policy), precision_(precision) {}

  // x + Wo attention(Wq u, Wk u, Wv u), u = norm(x). Without `kept` x is changed in place and
  // returned.
  Buffer self_attention(ProgramBuilder& pb, const AttentionInUse& w, Buffer x, Buffer bias,
                        bool causal, AttentionKept* kept, const RowsOfSamples& rows = {}) const;
  // The same with keys and values from the encoder's states [S, C].
  Buffer cross_attention(ProgramBuilder& pb, const AttentionInUse& w, Buffer x, Buffer states,
                         AttentionKept* kept, const RowsOfSamples& rows = {}) const;
  // x + Wo z,  z = gelu(Wi0 u) * Wi1 u or relu(Wi u),  u = norm(x).
  Buffer feed_forward(ProgramBuilder& pb, const FeedForwardInUse& w, Buffer x,
                      FeedForwardKept* kept, const RowsOfSamples& rows = {}) const;
  // What backward reads of it, once more.
  void feed_forward_again(ProgramBuilder& pb, const FeedForwardInUse& w, Buffer x,
                          FeedForwardKept& kept, const RowsOfSamples& rows = {}) const;

  // dx, the gradient of the output, becomes that of the input; weights' gradients are added to.
  void self_attention_backward(ProgramBuilder& pb, const AttentionInUse& w,
                               const AttentionKept& kept, const ScoreBias& bias, bool causal,
                               Buffer dx, const RowsOfSamples& rows = {}) const;
  // dstates [S, C] f32 is added to.
  void cross_attention_backward(ProgramBuilder& pb, const AttentionInUse& w,
                                const AttentionKept& kept, Buffer states, Buffer dstates, Buffer dx,
                                const RowsOfSamples& rows = {}) const;
  void feed_forward_backward(ProgramBuilder& pb, const FeedForwardInUse& w,
                             const FeedForwardKept& kept, Buffer dx,
                             const RowsOfSamples& rows = {}) const;

  // norm(x) of the type of the activations; r [L] f32 is kept for backward.
  struct Normed {
    Buffer u, r;
  };
  Normed norm(ProgramBuilder& pb, const Gain& g, Buffer x, DType dtype) const;
  // dx += the gradient through the norm of du.
  void norm_backward(ProgramBuilder& pb, const Gain& g, Buffer x, Buffer r, Buffer du,
                     Buffer dx) const;

  // The pieces, for who puts them together token by token.
  Buffer project(ProgramBuilder& pb, const AdaptedLinear& l, Buffer x) const;  // [L, H, D]
  Buffer flat(ProgramBuilder& pb, Buffer heads) const;                         // [L, H D]
  // x + dropout(W in), in the place of x or beside it.
  Buffer add_product(ProgramBuilder& pb, const AdaptedLinear& l, Buffer in, Buffer x, bool in_place,
                     const ops::DropoutOptions& drop = {}) const;

 private:
  Buffer hidden(ProgramBuilder& pb, const FeedForwardInUse& w, Buffer u, FeedForwardKept* kept,
                const RowsOfSamples& rows) const;
  // Attention of every sample: o [L, H, D] and lse [samples H, L / samples].
  void attend(ProgramBuilder& pb, AttentionKept& k, Buffer bias, bool causal,
              const RowsOfSamples& rows, const char* what) const;
  Buffer side_by_side(ProgramBuilder& pb, Buffer heads, std::int64_t samples) const;
  ops::AttentionOptions attention_options(const ScoreBias& bias, bool causal,
                                          const RowsOfSamples& rows, const char* what) const;
  // dropout(dx) of the type of the activations.
  Buffer gradient_of_product(ProgramBuilder& pb, Buffer dx, const ops::DropoutOptions& drop) const;
  struct HeadGradients {
    Buffer q, k, v;
  };
  HeadGradients attention_gradients(ProgramBuilder& pb, const AttentionInUse& w,
                                    const AttentionKept& kept, const ScoreBias& bias, bool causal,
                                    Buffer dx, const RowsOfSamples& rows, const char* what) const;

  const Config& config_;
  const MemoryPolicy& policy_;
  Precision precision_;
};

}  // namespace ballast::t5
