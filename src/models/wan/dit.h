#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/wan/config.h"
#include "models/wan/dit_block.h"
#include "models/wan/params.h"
#include "nn/block_weights.h"
#include "nn/memory_policy.h"
#include "ops/adamw.h"
#include "plan/program_builder.h"

namespace ballast::wan {

enum class Mode : std::uint8_t { infer, lora, full };
std::string_view name_of(Mode m);

struct LoraOptions {
  std::int64_t rank = 16;
  float alpha = 16;
};

// Everything that decides what is recorded.
struct DitJob {
  Config config;
  Mode mode = Mode::infer;
  MemoryPolicy policy;
  Precision precision;
  WeightFormat format = WeightFormat::stored;
  std::vector<LatentSize> latents;  // one per sample of the batch
  std::int64_t timestep_rows = 1;   // T: distinct timesteps in the batch
  LoraOptions lora;
  bool adapters_in_inference = false;  // Mode::infer with LoRA factors applied
  bool input_gradients = false;        // also for latents and text states (Mode::full)
  bool record_update = false;          // the optimizer's program too
  ops::AdamWOptions adamw;
  double max_grad_norm = 0;  // 0: no clipping
};

// Buffers that the host fills before a run and reads after it (host tier, except where said).
struct DitSampleIo {
  Buffer latent;        // [out, f, h, w] f32
  Buffer conditioning;  // [in - out, f, h, w] f32; invalid: none
  Buffer context;       // [S, X] f32, rows behind the text's end are zero
  Buffer timestep_row;  // [L] i32 on the device
  Buffer rope;          // [L, D/2, 2] f32 on the device, written by the load program
  Buffer target;        // [out, f, h, w] f32; training only
  Buffer output;        // [out, f, h, w] f32
  Buffer dlatent;       // gradients, where asked for
  Buffer dcontext;
};

struct NamedGradient {
  std::string name;
  Buffer gradient;  // f32, the parameter's shape; device or host
};

// One LoRA pair: persistent device buffers, f32.
struct AdapterIo {
  std::string name;  // "blocks.0.self_attn.q"
  Buffer a, b, da, db;
  Buffer a_m, a_v, b_m, b_v;  // AdamW moments; with the update program only
};

struct DitIo {
  Buffer timesteps;  // [T] f64
  std::vector<DitSampleIo> samples;
  Buffer loss;       // [1] f64
  Buffer grad_norm;  // [1] f32, before clipping; with the update program only
  std::vector<NamedGradient> gradients;
  std::vector<AdapterIo> adapters;
};

// The diffusion transformer as recorded programs: "load", "step" (forward, and backward when
// training) and "update".
class Dit {
 public:
  // groups: as each_parameter() lists them (see models/wan/weights.h).
  Dit(ProgramSet& set, DitJob job, std::vector<WeightGroup> groups, Taps* taps = nullptr);

  const DitIo& io() const { return io_; }
  const DitJob& job() const { return job_; }

 private:
  struct SampleState {
    std::int64_t tokens = 0;
    Buffer latent, conditioning, context_in, tokens_in;
    Buffer text_pre, context, dcontext;
    Buffer x, dx, output;
    std::vector<BlockSaved> saved;  // by block
  };
  struct TimeState {
    Buffer sinusoid, pre, hidden, e, e_silu, e0, de, de0;
  };
  struct GroupGradients {
    std::vector<Buffer> device;  // by tensor of the group
    std::vector<Buffer> host;    // where they wait; empty: the device buffers persist
  };

  bool trains() const { return job_.mode != Mode::infer; }
  bool full() const { return job_.mode == Mode::full; }

  void declare_io(ProgramBuilder& pb);
  void declare_adapters(ProgramBuilder& pb);
  void declare_gradients(ProgramBuilder& pb);
  void record_step(ProgramBuilder& pb);

  void upload_inputs(ProgramBuilder& pb);
  void embed(ProgramBuilder& pb);
  void forward_block(ProgramBuilder& pb, std::int64_t block);
  void head_and_loss(ProgramBuilder& pb);
  void backward_block(ProgramBuilder& pb, std::int64_t block);
  void embed_backward(ProgramBuilder& pb);
  void download_outputs(ProgramBuilder& pb);

  Activations kept_of(std::int64_t block) const;
  void offload(ProgramBuilder& pb, BlockSaved& saved);
  void bring_back(ProgramBuilder& pb, std::int64_t block);

  BlockSample block_sample(ProgramBuilder& pb, std::size_t sample) const;
  BlockWeightsInUse block_weights(ProgramBuilder& pb, std::int64_t block, bool backward);
  AdaptedLinear linear_of(const LinearParams<WeightBuffers>& w,
                          const LinearParams<Buffer>& grads) const;
  template <class Params>
  Params group_buffers(ProgramBuilder& pb, int group);
  template <class Params>
  Params group_gradients(int group) const;
  void begin_gradients(ProgramBuilder& pb, int group);
  void end_gradients(ProgramBuilder& pb, int group);

  ProgramSet& set_;
  DitJob job_;
  Taps* taps_;
  DitIo io_;
  std::optional<BlockWeights> weights_;
  std::vector<GroupGradients> gradients_;
  std::vector<SampleState> samples_;
  TimeState time_;
};

template <class Params>
Params Dit::group_buffers(ProgramBuilder& pb, int group) {
  const std::span<const WeightBuffers> buffers = weights_->use(pb, group);
  Params p;
  std::size_t i = 0;
  Params::each(p, "", [&](const std::string&, WeightBuffers& b) { b = buffers[i++]; });
  check(i == buffers.size(), "group {} has {} tensors, its layer {}", group, buffers.size(), i);
  return p;
}

template <class Params>
Params Dit::group_gradients(int group) const {
  Params p;
  if (!full()) return p;
  const auto& buffers = gradients_[static_cast<std::size_t>(group)].device;
  std::size_t i = 0;
  Params::each(p, "", [&](const std::string&, Buffer& b) { b = buffers[i++]; });
  return p;
}

}  // namespace ballast::wan
