#pragma once

#include "models/wan_vae/units.h"

namespace ballast::wan_vae {

// Records units backward, over whole clips. From the unit's input and the gradient of its result
// come the gradient of the input and, added to `grads`, those of its tensors (f32, in the layout of
// the weights; none: frozen). What lies between input and result is computed again.
class UnitBackward {
 public:
  UnitBackward(ProgramBuilder& pb, DType dtype)
      : pb_(pb), dtype_(dtype), forward_(pb, dtype, nullptr) {}

  // input: whether the gradient of x is wanted; only a network's first unit can do without.
  Buffer run(const Unit& u, const UnitBuffers& w, const UnitBuffers* grads, Buffer x, Buffer dy,
             bool input = true);
  // dx += the gradient of what the stage added to its result.
  void shortcut(const Unit& last, Buffer dy, Buffer dx);

 private:
  Buffer residual(const Unit& u, const UnitBuffers& w, const UnitBuffers* g, Buffer x, Buffer dy);
  Buffer attention(const Unit& u, const UnitBuffers& w, const UnitBuffers* g, Buffer x, Buffer dy);
  Buffer head(const Unit& u, const UnitBuffers& w, const UnitBuffers* g, Buffer x, Buffer dy);
  Buffer down(const Unit& u, const UnitBuffers& w, const UnitBuffers* g, Buffer x, Buffer dy);
  Buffer up(const Unit& u, const UnitBuffers& w, const UnitBuffers* g, Buffer x, Buffer dy);
  void attend(Buffer qkv, Buffer dout, Buffer dqkv);

  // y = conv(x), of dx's shape: dx (+)= the gradient through it.
  void conv_dx(Buffer dy, Buffer w, const ops::ConvGeometry& g, Buffer dx, bool accumulate);
  void conv_dw(Buffer x, Buffer dy, const UnitBuffers* grads, int slot, const ops::ConvGeometry& g);

  // silu(norm(x)), its parts, and the way back.
  struct Activated {
    Buffer normed, factor, y;
  };
  Activated activate(Buffer x, Buffer gamma);
  Buffer activate_backward(const Activated& a, Buffer x, Buffer gamma, Buffer dy, Buffer dgamma);

  ProgramBuilder& pb_;
  DType dtype_;
  UnitForward forward_;
};

}  // namespace ballast::wan_vae
