#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "models/wan_vae/layers.h"
#include "models/wan_vae/weights.h"
#include "ops/conv3d/conv3d.h"
#include "ops/space_to_depth_kernels.h"
#include "plan/program_builder.h"

namespace ballast::wan_vae {

// [..., C] as a matrix.
Buffer as_rows(ProgramBuilder& pb, Buffer x);

inline constexpr ops::ConvGeometry kCausal = {.kernel = {3, 3, 3}, .pad = {2, 1, 1}};
inline constexpr ops::ConvGeometry kPoint = {};
// The two frames before stand in front of its input.
inline constexpr ops::ConvGeometry kCausalJoined = {.kernel = {3, 3, 3}, .pad = {0, 1, 1}};
// Pixels of Wan2.2: colour, column, row.
inline constexpr ops::BlockShape kPixelFold = {.space = 2, .columns_first = true};
// One zero row below and one zero column to the right.
inline constexpr ops::ConvGeometry kDown = {.kernel = {1, 3, 3}, .stride = {1, 2, 2}};
inline constexpr ops::ConvGeometry kUp = {.kernel = {1, 3, 3}, .pad = {0, 1, 1}, .zoom = 2};
inline constexpr ops::ConvGeometry kTimeUp = {.kernel = {3, 1, 1}, .pad = {2, 0, 0}};
// From frame 0 of its input on; where a clip goes on, the frame before counts as well.
inline constexpr ops::ConvGeometry kTimeDown = {.kernel = {3, 1, 1}, .stride = {2, 1, 1}};
inline constexpr ops::ConvGeometry kTimeDownOn = {
    .kernel = {3, 1, 1}, .stride = {2, 1, 1}, .pad = {1, 0, 0}};

// The last frames that each convolution in time has seen, from chunk to chunk of a clip. Some of
// them wait in host memory: those of the lowest resolutions, which are used least often. Those of a
// band are brought from there before a program first uses them and go back after the last time;
// where they are used several times, those of the next band then take their place.
class FrameCaches {
 public:
  // hosted: how many. last: of the last ones in order of use, as an encoder's lowest are.
  FrameCaches(int hosted, bool last) : hosted_(hosted), last_(last) {}

  // What follows are frames of this band (-1: whole ones), for the last time in this program or
  // not.
  void visit(int band, bool last_time);
  // Where the frames are kept, made when first asked for. Nothing is read of it at the start.
  Buffer persistent(ProgramBuilder& pb, const std::string& name, const Shape& frames, DType dtype,
                    bool start);
  // Behind what was written there.
  void leave(ProgramBuilder& pb, const std::string& name, bool start);
  // ... and where this program reads them; from the host they are brought.
  Buffer history(ProgramBuilder& pb, Buffer persistent);
  // The same into frames that are part of more.
  static void upload(ProgramBuilder& pb, Buffer persistent, Buffer to);

  static constexpr int kEncoder = 24, kDecoder = 32;  // how many there are

 private:
  static std::string key(const std::string& name, int band);

  int hosted_;
  bool last_;
  int band_ = -1;
  bool last_time_ = true;
  std::map<std::string, int, std::less<>> order_;  // of first use, whatever the band
  std::map<std::string, Buffer, std::less<>> persistent_;
  struct Brought {
    Buffer here;
    bool again = false;  // used more than once
  };
  std::map<std::string, Brought, std::less<>> brought_;  // in this program
};

// Records units forward. Frames are channels last, [T, H, W, C]. `start` says that the first of
// them is frame 0 of the clip; otherwise they follow on what the caches hold. Without caches a clip
// comes whole.
class UnitForward {
 public:
  UnitForward(ProgramBuilder& pb, DType dtype, FrameCaches* caches)
      : pb_(pb), dtype_(dtype), caches_(caches) {}

  // Frames are bands of `grid` rows of so many, or as many times these at their resolution; 0: no
  // matter, they are never cut.
  struct GridRows {
    std::int64_t grid = 0, whole = 0;
  };
  void set_rows(const GridRows& rows) { rows_ = rows; }

  // y may be x itself where `consume` allows it. Not for up_*.
  Buffer run(const Unit& u, const UnitBuffers& w, Buffer x, bool start, bool consume);
  // The two halves of up_2d and up_3d.
  Buffer time_up(const Unit& u, const UnitBuffers& w, Buffer x, bool start);
  Buffer space_up(const Unit& u, const UnitBuffers& w, Buffer x);
  // What the encoder's and the decoder's stages add to their result, y += ...
  void fold_shortcut(Buffer stage_input, Buffer y, bool start);
  void unfold_shortcut(Buffer frame, Buffer y);

  // Parts that the backward pass repeats.
  Buffer norm(Buffer x, Buffer gamma, Buffer y, Buffer* factor = nullptr);  // y may be x
  void activate(Buffer x, Buffer gamma, Buffer y);
  // What a causal convolution reads: `fresh` frames for its producer to write, in `all` behind room
  // for the two before them, where the device wants them in one piece (cuDNN, see
  // ops/conv3d/conv3d.h). Elsewhere both are `reuse`, if there is one.
  struct Input {
    Buffer all, fresh;
    bool joined() const { return !(all == fresh); }
  };
  Input input_of(Buffer reuse, Shape like, std::int64_t channels, std::int64_t outputs,
                 DType y_dtype);
  Buffer causal(const Input& x, Buffer w, Buffer bias, const std::string& cache, bool start,
                std::int64_t outputs, DType y_dtype);
  Buffer point(Buffer x, Buffer w, Buffer bias, std::int64_t outputs, DType y_dtype);
  void attend(Buffer qkv, Buffer o);  // [T, H, W, 3C] to [T, H, W, C]
  Buffer frames(std::string_view name, const Shape& like, std::int64_t channels, DType dtype);

  // Rows of scores that attention makes at once: whole quanta, bounded bytes.
  static std::int64_t query_rows(std::int64_t positions);

 private:
  void causal_into(const Input& x, Buffer w, Buffer bias, const std::string& cache, bool start,
                   Buffer y, bool accumulate);
  void convolve(Buffer x, Buffer history, Buffer w, Buffer bias, Buffer y,
                ops::ConvOptions options);
  void join(const Input& x, Buffer persistent, bool start);
  void remember(Buffer persistent, Buffer history, Buffer x, std::int64_t first, bool start);
  Buffer down(const Unit& u, const UnitBuffers& w, Buffer x, bool start);

  ProgramBuilder& pb_;
  DType dtype_;
  FrameCaches* caches_;
  GridRows rows_;
};

}  // namespace ballast::wan_vae
