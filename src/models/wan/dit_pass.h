#pragma once

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/to_size.h"
#include "models/wan/appended_adapters.h"
#include "models/wan/dit.h"
#include "ops/linear/append_adapter.h"

namespace ballast::wan {

inline constexpr DType f32 = DType::f32;

// The linear layers of a block that adapters attach to, with their weights' shapes.
struct AdapterTarget {
  const char* name;  // "self_attn.q"
  AdaptedLinear BlockWeightsInUse::*linear;
  Shape weight;
};
std::vector<AdapterTarget> adapter_targets(const Config& c);

// Of a block's tensors, in their order.
std::vector<GradientPart> block_gradient_parts();

enum class PassKind : std::uint8_t {
  predict,  // forward
  train,    // forward, loss, backward
  score,    // forward, loss
};

// Records one program of the transformer: a run of one batch with one expert.
class DitPass {
 public:
  struct Parts {
    const DitJob& job;
    BlockWeights& weights;
    const std::vector<AdapterIo>& adapters;
    std::vector<GroupGradients>& gradients;  // of the expert
    Buffer loss_sum;                         // invalid: the loss begins at zero in this run
    Buffer loss;                             // where it goes on the host
  };
  static constexpr int kNoAdapters = -1;  // as an expert: the model as it is
  DitPass(const Parts& parts, const DitPassIo& io, int expert, PassKind kind, Taps* taps);

  void record(ProgramBuilder& pb);

 private:
  struct SampleState {
    std::int64_t tokens = 0;
    Buffer latent, conditioning, context_in, tokens_in, rope;
    Buffer text_pre, context, dcontext;
    Buffer x, dx, output, target, mask, loss_weight;
    Buffer z;  // of x, where the block before has made the next one's first norm
    std::vector<BlockSaved> saved;  // by block
  };
  struct TimeState {
    Buffer sinusoid, pre, hidden, e, e_silu, e0, de, de0;
  };

  bool backward() const { return kind_ == PassKind::train; }
  bool scores() const { return kind_ != PassKind::predict; }
  bool full() const { return backward() && job_.mode == Mode::full; }

  Buffer upload(ProgramBuilder& pb, const char* name, Buffer from, DType dtype) const;
  void upload_inputs(ProgramBuilder& pb);
  void embed(ProgramBuilder& pb);
  void forward_block(ProgramBuilder& pb, std::int64_t block);
  void head_and_loss(ProgramBuilder& pb);
  void backward_block(ProgramBuilder& pb, std::int64_t block);
  void embed_backward(ProgramBuilder& pb);
  void download_outputs(ProgramBuilder& pb);

  Activations kept_of(std::int64_t block) const;
  Buffer moved(ProgramBuilder& pb, const char* name, Buffer b, Tier to, Lane lane);
  void offload(ProgramBuilder& pb, BlockSaved& saved);
  void reload(ProgramBuilder& pb, std::int64_t block);

  BlockSample block_sample(std::size_t sample) const;
  BlockWeightsInUse block_weights(ProgramBuilder& pb, std::int64_t block, bool backward);
  void check_fp8(ProgramBuilder& pb, const std::string& name, const AdaptedLinear& l) const;
  void attach_adapters(ProgramBuilder& pb, std::int64_t block, bool backward, BlockWeightsInUse& w);
  void append_adapters(ProgramBuilder& pb, std::int64_t block, const BlockWeightsInUse& w);
  // What brings one target's row padding up to date.
  std::vector<ops::AppendAdapterBuffers> adapter_copies(ProgramBuilder& pb, std::int64_t block,
                                                        std::size_t target, Buffer wide) const;
  AdaptedLinear linear_of(const LinearParams<WeightBuffers>& w,
                          const LinearParams<Buffer>& grads) const;
  template <class Params>
  Params group_buffers(ProgramBuilder& pb, int group);
  template <class Params>
  Params group_gradients(int group) const;
  void begin_gradients(ProgramBuilder& pb, int group);
  void end_gradients(ProgramBuilder& pb, int group);
  // The same of a block, part by part: see leaving_.
  void declare_gradients(ProgramBuilder& pb, int group);
  void begin_gradient(ProgramBuilder& pb, Buffer persistent, Buffer here);
  void come_gradients(ProgramBuilder& pb, int group, GradientPart part);
  void leave_gradients(ProgramBuilder& pb, GradientPart part);
  GradientPart part_of(std::size_t tensor) const;
  const AdapterIo* adapter(const std::string& module) const;  // nullptr: none
  std::int64_t first_trained_block() const;

  const DitJob& job_;
  BlockWeights& weights_;
  std::vector<GroupGradients>& gradients_;
  Buffer loss_sum_, loss_;
  const DitPassIo& io_;
  PassKind kind_;
  bool pulled_;  // of a distilled student: its target is half of where the answer is to go
  Taps* taps_;
  std::vector<SampleState> samples_;
  TimeState time_;
  std::vector<AdapterTarget> targets_;
  std::map<std::string, const AdapterIo*> adapters_;  // of the expert, by module
  AppendedAdapters appended_;
  std::set<std::int64_t>
      appended_blocks_;  // resident ones whose row padding this program has filled
  // Gradients of the block before on their way to the host, by part. Recorded as late as the next
  // block's take their places: until then they have all the time there is, and no two blocks'
  // gradients are there at once.
  struct Leaving {
    Buffer here, persistent;
  };
  std::array<std::vector<Leaving>, kGradientParts> leaving_;
  std::optional<BlockWeightsInUse> next_weights_;  // of the forward pass's next block
  std::vector<GradientPart> parts_;  // of a block's tensors, in their order; empty: one part
};

template <class Params>
Params DitPass::group_buffers(ProgramBuilder& pb, int group) {
  const std::span<const WeightBuffers> buffers = weights_.use(pb, group);
  Params p;
  std::size_t i = 0;
  Params::each(p, "", [&](const std::string&, WeightBuffers& b) {
    b = buffers[i++];
    if (adapters_.empty()) b.wide = {};  // another program's adapters stand there
  });
  check(i == buffers.size(), "group {} has {} tensors, its layer {}", group, buffers.size(), i);
  return p;
}

template <class Params>
Params DitPass::group_gradients(int group) const {
  Params p;
  if (!full()) return p;
  const auto& buffers = gradients_[to_size(group)].device;
  std::size_t i = 0;
  Params::each(p, "", [&](const std::string&, Buffer& b) { b = buffers[i++]; });
  return p;
}

}  // namespace ballast::wan
