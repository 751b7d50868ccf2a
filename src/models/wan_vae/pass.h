#pragma once

#include <functional>
#include <string>

#include "models/wan_vae/units.h"

namespace ballast::wan_vae {

// Sees results of units and stages while programs are recorded.
class Taps {
 public:
  virtual ~Taps() = default;
  // Frames [T, H, W, C], the first of which is frame `first` of what the program makes of them.
  virtual void tap(ProgramBuilder& pb, const std::string& name, Buffer frames,
                   std::int64_t first) = 0;
};

// Records a network over some frames of a clip, from the first unit to the last. With `slices` what
// follows a temporal upsampling takes one frame after the other to the end: as many times less
// memory as there are frames, the same bits.
class ForwardPass {
 public:
  struct Parts {
    const Network& net;
    Weights& weights;
    DType dtype;
    FrameCaches* caches = nullptr;
    Taps* taps = nullptr;
    bool slices = false;
  };
  // done(y, first): frames of the result, the first of which is frame `first`.
  using Done = std::function<void(Buffer y, std::int64_t first)>;

  ForwardPass(ProgramBuilder& pb, const Parts& parts, bool start)
      : pb_(pb), parts_(parts), units_(pb, parts.dtype, parts.caches), start_(start) {}
  void run(Buffer x, const Done& done) { go(0, 0, x, 0, done); }

 private:
  void go(std::size_t stage, std::size_t first_unit, Buffer x, std::int64_t at, const Done& done);
  void up(std::size_t stage, std::size_t unit, Buffer x, Buffer input, std::int64_t at,
          const Done& done);
  void tap(bool tapped, const std::string& name, Buffer frames, std::int64_t at);

  ProgramBuilder& pb_;
  Parts parts_;
  UnitForward units_;
  bool start_;
};

}  // namespace ballast::wan_vae
