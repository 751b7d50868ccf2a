#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/wan_vae/bands.h"
#include "models/wan_vae/units.h"
#include "nn/taps.h"

namespace ballast::wan_vae {

// Records a network over some frames of a clip, from the first unit to the last. With `slices` what
// follows a temporal upsampling takes one frame after the other to the end: as many times less
// memory as there are frames. With `bands` the stages of most pixels take one band of rows after
// the other, and a decoder in each one frame after the other. The same bits.
class ForwardPass {
 public:
  struct Parts {
    const Network& net;
    Weights& weights;
    DType dtype;
    FrameCaches* caches = nullptr;
    Taps* taps = nullptr;  // of whole frames
    bool slices = false;
    std::vector<Band> bands = {};  // empty: frames are whole
  };
  // done(y, first, row): frames of the result, the first of which is frame `first`; their rows from
  // `row` on.
  using Done = std::function<void(Buffer y, std::int64_t first, std::int64_t row)>;
  // Some rows of the frames that go in.
  using Rows = std::function<Buffer(std::int64_t first, std::int64_t rows)>;

  ForwardPass(ProgramBuilder& pb, const Parts& parts, bool start);
  void decode(Buffer x, const Done& done);
  void encode(const Rows& input, std::int64_t rows, const Done& done);

 private:
  struct Place {
    std::size_t stage = 0, unit = 0;  // the first unit of the stage
    std::int64_t at = 0;              // of the first frame
    bool last = true;                 // nothing comes here again in this program
  };
  struct Low {  // what a decoder's stage makes before it doubles rows and columns
    Buffer frames, input;
    std::int64_t at = 0;
    bool start = false, faster = false;
  };
  using Made = std::function<void(Buffer y, std::int64_t first)>;

  void go(const Place& p, Buffer x, const Made& done);
  void up(const Place& p, Buffer x, Buffer input, const Made& done);
  void double_frames(const Place& p, const Low& low, const Made& done);
  void in_bands(std::int64_t grid, const std::function<void()>& record);
  Buffer kept(Buffer frames, std::int64_t f);
  std::int64_t kept_row(Buffer frames) const;
  void tap(bool tapped, const std::string& name, Buffer frames, std::int64_t at);

  ProgramBuilder& pb_;
  Parts parts_;
  UnitForward units_;
  bool start_;
  std::size_t end_;             // the stage before which to stop
  std::size_t cut_;             // the stage that begins (decoder) or ends (encoder) bands
  const Band* band_ = nullptr;  // of this the frames are
  std::int64_t grid_ = 0;       // rows of whole frames
};

}  // namespace ballast::wan_vae
