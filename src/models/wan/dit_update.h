#pragma once

#include "models/wan/dit.h"

namespace ballast::wan {

// The optimizer's programs; declares io.trained and io.grad_norm.
// "init_state", run once after loading: masters take the weights' values, states begin at zero.
// "after_restore", run when values and states came from a checkpoint: narrow copies are made anew.
// "grad_norm" (one per set of adapters: expert, or student and critic): the norm over all gradients
// and the clipping factor; the host may look at it before anything is changed. "update" (likewise):
// the optimizer, tensor by tensor. What lies on the device is updated there; of what lies in host
// memory or on disk, pieces visit the device. Weights narrower than f32 have an f32 master, unless
// the optimizer's rounding (Kahan, stochastic) makes that unnecessary. Behind the optimizer, norms
// of adapters are brought to their limit, where there is one (LoraOptions::max_norm). "value_norm":
// the norm over all trained values, which shows whether one of them is no number any more.
void record_update(ProgramSet& set, const DitJob& job, BlockWeights& weights, int sets, DitIo& io);

}  // namespace ballast::wan
