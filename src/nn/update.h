#pragma once

#include <span>
#include <string>
#include <vector>

#include "nn/optimizer.h"
#include "nn/staging_ring.h"
#include "plan/program_builder.h"

namespace ballast {

// What the optimizer changes, with all it keeps for that. Everything lies on the device, or
// gradient and states in host memory, or states and the master on disk: then pieces visit the
// device.
struct UpdatedTensor {
  std::string name;  // unique in the run: of a second expert with "high_noise." in front
  int expert = 0;    // with several sets of adapters: whose it is
  Buffer value;      // the f32 master where there is one, else what the forward pass reads
  Buffer narrow;     // what the forward pass reads when it is not value
  Buffer gradient;   // f32 or bf16
  std::vector<StateSpec> specs;
  std::vector<Buffer> states;
  bool decays = true;
  double rate = 1;  // factor on the learning rate
  bool state_on_disk = false;
  MomentBits moment_bits = MomentBits::by_size;

  // Where states and a master wait.
  Tier state_tier(const ProgramBuilder& pb) const {
    return state_on_disk ? Tier::disk : pb.tier(gradient);
  }
};

// Fills in specs and states: persistent, where the gradient lies or on disk.
void declare_states(ProgramBuilder& pb, const OptimizerOptions& options, UpdatedTensor& t);

// What programs of the optimizer consist of. ring: through which state on disk comes and goes; not
// needed where there is none.
// Once after loading: masters take the weights' values, states begin at zero.
void record_initial_state(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors,
                          StagingRing* ring = nullptr);
// When values and states came from a checkpoint: narrow copies are made anew.
void record_restored(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors,
                     StagingRing* ring = nullptr);
// factor [1] f32 = min(1, max_norm / norm) over all gradients (0: no clipping); norm [1] f32 on the
// host. Tensors whose gradients share a buffer follow each other.
void record_gradient_norm(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors,
                          double max_norm, Buffer factor, Buffer norm);
// norm [1] f32 on the host: of all values together, which is finite where all of them are. It
// shares its buffers with the norm of gradients: factor is to be made again before the next update.
// Of values on disk the narrow copy counts.
inline constexpr const char* kValueNorm = "value_norm";  // the program's name
void record_value_norm(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors, Buffer factor,
                       Buffer norm);
// The optimizer, tensor by tensor. While a piece is updated, the next one is read from disk.
void record_update(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors, Buffer factor,
                   const OptimizerOptions& options, StagingRing* ring = nullptr);

// Elements [first, first + count) of a contiguous tensor, in one dimension.
Buffer flat_cut(ProgramBuilder& pb, Buffer b, std::int64_t first, std::int64_t count);

}  // namespace ballast
