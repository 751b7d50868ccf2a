#pragma once

#include <vector>

#include "models/wan_vae/backward.h"

namespace ballast::wan_vae {

// Records one network over a whole clip, forward and then back. With checkpointing forward keeps
// the inputs of stages alone and backward computes the rest again; otherwise the inputs of all
// units are kept. The same bits.
class ClipPass {
 public:
  struct Parts {
    const Network& net;
    Weights& weights;
    DType dtype;
    bool checkpointing = false;
  };
  ClipPass(ProgramBuilder& pb, const Parts& parts);

  Buffer forward(Buffer x);
  // From the gradient of forward()'s result to that of its input; none is made of the input where
  // `input` is false. Gradients of the weights are added to `grads`, by unit; none: frozen.
  Buffer backward(Buffer dy, const std::vector<UnitBuffers>* grads, bool input = true);

 private:
  Buffer stage_forward(std::size_t stage, Buffer x, std::vector<Buffer>* inputs);

  ProgramBuilder& pb_;
  Parts parts_;
  std::vector<std::size_t> first_unit_;           // of each stage
  std::vector<Buffer> stage_inputs_;              // by stage
  std::vector<std::vector<Buffer>> unit_inputs_;  // by stage, where they are kept
};

// Pixels [n, H, W, 3] in the network's form, and its result as pixels again; f32. Wan2.2 has 2 x 2
// of them in channels.
Buffer fold_pixels(ProgramBuilder& pb, const Config& c, Buffer pixels, DType dtype);
Buffer unfold_pixels(ProgramBuilder& pb, const Config& c, Buffer folded);

}  // namespace ballast::wan_vae
