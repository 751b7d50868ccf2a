#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "ops/kernels/update_rounding.h"
#include "plan/program_builder.h"

namespace ballast {

enum class OptimizerKind : std::uint8_t {
  adamw,            // torch.optim.AdamW; moments in state_dtype
  adamw_optimi,     // optimi's AdamW: moments in the parameter's dtype; a bf16 parameter with
                    // rounding::nearest gets Kahan's sum, which is what optimi does by itself
                    // unless kahan_unasked is off
  stableadamw,      // optimi's StableAdamW: adamw_optimi with a learning rate of each tensor's own
  adamw8bit,        // bitsandbytes: block-wise 8-bit moments (f32 below 4096 elements, and of
                    // tensors with MomentBits::always_32)
  adamw8bit_kahan,  // the same behind a compensation buffer, as diffusion-pipe has it: its
                    // weight_decay has practically no effect; `rounding` plays no part
  adafactor,        // transformers' Adafactor; beta1, beta2, eps, state_dtype play no part
  sgd,              // torch.optim.SGD: weight decay is added to the gradient
};
std::string_view name_of(OptimizerKind k);
bool is_optimi(OptimizerKind k);  // those of optimi, which may have a Kahan sum
// Any case; "adamw8bitkahan" and "adamw8bit_kahan" are the same.
std::optional<OptimizerKind> find_optimizer(std::string_view name);

// The learning rate is that of b.step(). Numbers in f64: 1 - beta2 has few digits left in f32.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  UpdateRounding rounding = UpdateRounding::nearest;
  bool kahan_unasked = true;  // adamw_optimi, stableadamw
  DType state_dtype = DType::f32;
  double momentum = 0;  // sgd
  // Adafactor
  double eps_rows = 1e-30, eps_scale = 1e-3, clip_threshold = 1.0, decay_rate = -0.8;
  bool scale_parameter = true, relative_step = true, warmup_init = false;
  bool stabilize = false;  // adamw8bit_kahan
  std::optional<double> ema_decay = {};
};

// A tensor that the optimizer keeps beside a trained one; zero at first unless said.
struct StateSpec {
  std::string suffix;  // ".m", ".v", ".m.absmax", ".row", ".column", ".momentum", ".kahan", ".ema"
  Shape shape;
  DType dtype = DType::f32;
  bool starts_as_parameter = false;  // EMA
  // Elements of the trained tensor that share one entry: 256 in the magnitudes of 8-bit moments; 0
  // when entries do not follow the elements (Adafactor), so that it cannot be cut.
  std::int64_t elements_per_entry = 1;
};
// How many bits the moments of an 8-bit optimizer have.
enum class MomentBits : std::uint8_t {
  by_size,  // 8, from 4096 elements on
  always_32,
};
// For the tensor as a whole, never for a cut of it.
std::vector<StateSpec> state_specs(const OptimizerOptions& o, const Shape& shape, DType parameter,
                                   MomentBits bits = MomentBits::by_size);

bool is_8bit(OptimizerKind k);  // whether moments are kept in 8 bits

// Whether tensors may have learning rates of their own: the Adam family.
bool has_rate(OptimizerKind k);

// Elements at whose multiples a tensor may be cut for the update without changing a bit; nullopt:
// only the whole tensor can be updated (statistics of Adafactor, StableAdamW and `stabilize`).
std::optional<std::int64_t> update_quantum(const OptimizerOptions& o);

// The part of a state that belongs to elements [first, first + count) of its tensor, as a view of
// one dimension. first is a multiple of update_quantum(), and so is count unless the tensor ends
// there. Works for states in any tier, so a caller that brings pieces to the device copies between
// cut_state() and a temporary of the same shape and dtype.
Buffer cut_state(ProgramBuilder& pb, const StateSpec& spec, Buffer state, std::int64_t first,
                 std::int64_t count);

// Records the update of one tensor (or of a cut of it: first_element tells which; states are cut in
// proportion). All operands on the device. p is f32 or bf16; g f32 or bf16, already summed over
// micro-batches; factor [1] f32 is the clipping factor, or absent; states in the order of
// state_specs(). Shapes of cuts do not matter, only how many elements there are; Adafactor reads
// the shape of p.
struct OptimizerStep {
  Buffer p, g, factor;
  std::span<const Buffer> states;
  std::string site;                // the tensor's name: random numbers of stochastic rounding
  std::int64_t first_element = 0;  // of the cut
  bool decays = true;              // false: no weight decay (vectors)
  double rate = 1;                 // factor on the learning rate; has_rate() kinds only
};
void record_optimizer(ProgramBuilder& pb, const OptimizerOptions& o, const OptimizerStep& step);

}  // namespace ballast
