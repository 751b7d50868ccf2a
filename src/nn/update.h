#pragma once

#include <span>
#include <string>
#include <vector>

#include "nn/optimizer.h"
#include "plan/program_builder.h"

namespace ballast {

// What the optimizer changes, with all it keeps for that. Everything lies on the device, or
// gradient and states in host memory: then pieces visit the device.
struct UpdatedTensor {
  std::string name;  // unique in the run
  Buffer value;      // the f32 master where there is one, else what the forward pass reads
  Buffer narrow;     // what the forward pass reads when it is not value
  Buffer gradient;   // f32 or bf16
  std::vector<StateSpec> specs;
  std::vector<Buffer> states;
  bool decays = true;
  double rate = 1;  // factor on the learning rate
};

// Fills in specs and states: persistent, where the gradient lies.
void declare_states(ProgramBuilder& pb, const OptimizerOptions& options, UpdatedTensor& t);

// What programs of the optimizer consist of.
// Once after loading: masters take the weights' values, states begin at zero.
void record_initial_state(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors);
// When values and states came from a checkpoint: narrow copies are made anew.
void record_restored(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors);
// factor [1] f32 = min(1, max_norm / norm) over all gradients (0: no clipping); norm [1] f32 on the
// host. Tensors whose gradients share a buffer follow each other.
void record_gradient_norm(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors,
                          double max_norm, Buffer factor, Buffer norm);
// The optimizer, tensor by tensor.
void record_update(ProgramBuilder& pb, std::span<const UpdatedTensor> tensors, Buffer factor,
                   const OptimizerOptions& options);

}  // namespace ballast
