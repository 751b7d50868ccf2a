#pragma once

#include "models/wan/dit.h"

namespace ballast::wan {

// The optimizer's program "update", and before it "init_state", which is run once after loading and
// copies weights into their f32 masters where there are any. Update: one norm over all gradients,
// then AdamW tensor by tensor. Adapters and resident weights are updated where they are. What
// streams (Mode::full) has master weights, moments and gradients in host memory; pieces of them
// visit the device. Values that the forward pass reads in a narrower dtype are written anew from
// the f32 master.
void record_update(ProgramSet& set, const DitJob& job, const BlockWeights& weights, DitIo& io);

}  // namespace ballast::wan
