#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "models/wan/config.h"
#include "nn/linear_group.h"
#include "nn/memory_policy.h"
#include "nn/precision.h"
#include "nn/taps.h"
#include "ops/attention/attention.h"
#include "ops/residual_norm.h"
#include "plan/program_builder.h"

namespace ballast::wan {

// The weights of one block while they are in reach, and where their gradients go.
// Gradients of a block's weights, in the order in which backward comes to them.
enum class GradientPart : std::uint8_t {
  feed_forward,     // and cross-attention's output projection
  cross_attention,  // the rest of it, norm3 and self-attention's output projection
  self_attention,   // the rest of it and the modulation
};
inline constexpr std::size_t kGradientParts = 3;

struct BlockWeightsInUse {
  AdaptedLinear self_q, self_k, self_v, self_o, cross_q, cross_k, cross_v, cross_o, up, down;
  Gain self_norm_q, self_norm_k, cross_norm_q, cross_norm_k, norm3, norm3_bias;
  Buffer modulation;   // [6, T, C] f32: shift, scale, gate of attention, then of the feed-forward
  Buffer dmodulation;  // the same shape, added to; invalid: frozen
  // Gives matrices that are used once more other places, filled anew, so that nothing holds the
  // places they had in between. Empty: they stay in reach.
  std::function<void(ProgramBuilder&, BlockWeightsInUse&)> renew;
  // Backward is about to add to these gradients. Empty: all of them are there.
  std::function<void(ProgramBuilder&, GradientPart)> gradients_come;
};

// One sample's view of the block.
struct BlockSample {
  int index = 0;            // in the batch
  std::int64_t tokens = 0;  // L
  Buffer timestep_row;      // [L] i32: which of the T modulation rows a token uses
  Buffer rope;              // [L, D/2, 2]
  Buffer context;           // [S, C] text states
  Buffer dcontext;          // [S, C] f32, added to; invalid: not wanted
};

// What the adapters' second factors multiply (ops/linear/lora.h), rank columns for each layer;
// invalid where there is no adapter. The last layer's is made again by backward, from its own GELU.
struct AdapterInputs {
  Buffer self_qkv, self_o, cross_q, cross_o, up;  // of L rows
  Buffer cross_kv;                                // of S rows
};

// What a block keeps of a sample from forward to backward; invalid: computed again.
struct BlockSaved {
  Buffer x;                           // [L, C] block input, always there
  Buffer attention, lse;              // [L, C], [H, L]
  Buffer q, k, v;                     // [L, C] before norm and rotation
  Buffer cross_q, cross_k, cross_v;   // [L, C], [S, C], [S, C] before the norms
  Buffer cross_attention, cross_lse;  // [L, C], [H, L]
  Buffer x1, x2;                      // residual stream before norm3 and norm2
  Buffer pre;                         // [L, F] before GELU
  Buffer self_out, ffn_out;           // [L, C] what the gates multiply
  AdapterInputs u;
};

// The norm that a block begins with, where the block before makes it together with the sum it ends
// with: the residual stream is read once less. The bits are the same.
struct FirstNorm {
  ops::NormTables tables;
  std::int64_t room = 0;  // columns behind the rows, for an appended adapter
};

// The transformer block of the Wan models. Records forward and backward for one sample at a time;
// chunks, head groups and what is kept are the policy's choice and never change a bit.
class DitBlock {
 public:
  DitBlock(const Config& config, const MemoryPolicy& policy, Precision precision,
           Taps* taps = nullptr, std::string tap_prefix = "")
      : config_(config),
        policy_(policy),
        precision_(precision),
        taps_(taps),
        tap_prefix_(std::move(tap_prefix)) {}

  // Returns the block's output. saved == nullptr: no backward follows, and x is overwritten with
  // it.
  // z: the first norm's result, if it is there. next() is called behind the last product, if it is
  // not empty; what it asks for is left in next_z.
  struct Norms {
    Buffer z = {};
    std::function<FirstNorm()> next = {};
    Buffer next_z = {};
  };
  Buffer forward(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s, Buffer x,
                 Activations keep, BlockSaved* saved, Norms& norms) const;
  // Whether first norms may be made ahead: of whole samples.
  static bool joins_norms(const MemoryPolicy& policy) { return policy.chunk_tokens == 0; }
  FirstNorm first_norm(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s) const;

  // dx [L, C] holds the gradient of the output and becomes that of the input (wants_dx), or is left
  // in an unspecified state when nothing before this block is trained. near_end() is called where
  // only token-local work is left and most memory is free: the time to bring the next block's.
  void backward(ProgramBuilder& pb, BlockWeightsInUse w, const BlockSample& s,
                const BlockSaved& saved, Buffer dx, bool wants_dx,
                const std::function<void()>& near_end) const;

 private:
  // Rows of the modulation table.
  enum Modulation : int { shift1, scale1, gate1, shift2, scale2, gate2 };

  struct Qk {  // normalised (and rotated) queries or keys with what their backward needs
    Buffer y, r;
  };

  // [L, C], with room behind the rows for so many columns of an appended adapter.
  Buffer full(ProgramBuilder& pb, const char* name, const BlockSample& s, DType dtype,
              std::int64_t room = 0) const;
  // z = norm of x, or of x + y gate that goes to `out`, as the layer reads it.
  ops::LayerNormOut normed(ProgramBuilder& pb, Buffer x, const ops::NormTables& tables,
                           const AdaptedLinear& reader) const;
  ops::LayerNormOut residual_normed(ProgramBuilder& pb, Buffer x, Buffer y, const ops::Gate& gate,
                                    Buffer out, const ops::NormTables& tables,
                                    const AdaptedLinear& reader) const;
  Buffer heads(ProgramBuilder& pb, Buffer b) const;  // [R, C] seen as [R, H, D]
  Buffer modulation_row(ProgramBuilder& pb, Buffer m, int row) const;
  ops::NormTables norm3_tables(ProgramBuilder& pb, const BlockWeightsInUse& w) const;
  ops::AttentionOptions attention_options() const;
  bool gates_train(const BlockWeightsInUse& w) const { return static_cast<bool>(w.dmodulation); }
  void tap(ProgramBuilder& pb, const char* name, const BlockSample& s, Buffer rows,
           std::int64_t first) const;

  LinearGroup self_qkv(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                       std::int64_t first_row) const;
  LinearGroup cross_kv(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s) const;
  // Memory for the u of layers that share an input.
  Buffer adapter_input(ProgramBuilder& pb, std::int64_t rows,
                       std::initializer_list<const AdaptedLinear*> layers) const;
  // The same for a layer whose input is there as long as its u is wanted: an appended adapter has
  // it behind its input.
  Buffer adapter_input_beside(ProgramBuilder& pb, std::int64_t rows, const AdaptedLinear& l) const {
    return l.appended ? Buffer() : adapter_input(pb, rows, {&l});
  }
  static Buffer beside(ProgramBuilder& pb, const AdaptedLinear& l, Buffer x, Buffer u) {
    return l.appended ? l.appended.u(pb, x) : u;
  }

  void project_qkv(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s, Buffer x,
                   Buffer q, Buffer k, Buffer v, Buffer u, Buffer made_z = {}) const;
  void project_context(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                       Buffer u, Buffer& cross_k, Buffer& cross_v) const;
  Qk norm_and_rotate(ProgramBuilder& pb, const BlockSample& s, Buffer raw, Buffer gain, bool rotate,
                     Buffer y) const;
  void attend(ProgramBuilder& pb, Buffer q, Buffer k, Buffer v, Buffer o, Buffer lse) const;
  void attention_residual(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                          Buffer x, Buffer o, Buffer x1, Buffer cross_q, const BlockSaved& keep,
                          bool u_is_there = false) const;
  void feed_forward_residual(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                             Buffer x1, Buffer cross_o, Buffer out, const BlockSaved* keep,
                             Norms& norms) const;

  BlockSaved restore(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                     const BlockSaved& saved, Qk& q, Qk& k, Qk& cq, Qk& ck) const;
  void restore_self(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                    BlockSaved& r, Qk& q, Qk& k) const;
  void backward_feed_forward(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                             const BlockSaved& saved, Buffer dx, Buffer dcross_o) const;
  void backward_cross(ProgramBuilder& pb, const BlockWeightsInUse& w, const BlockSample& s,
                      const BlockSaved& saved, const Qk& cq, const Qk& ck, Buffer dx,
                      Buffer dcross_o, Buffer dself_o) const;
  void backward_self(ProgramBuilder& pb, BlockWeightsInUse& w, const BlockSample& s,
                     const BlockSaved& saved, const Qk& q, const Qk& k, Buffer dx, Buffer dself_o,
                     bool wants_dx, const std::function<void()>& near_end) const;

  const Config& config_;
  const MemoryPolicy& policy_;
  Precision precision_;
  Taps* taps_;
  std::string tap_prefix_;
};

}  // namespace ballast::wan
