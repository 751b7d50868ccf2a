#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/shape.h"
#include "models/wan_vae/config.h"

namespace ballast::wan_vae {

// What a network is made of, in order of execution; the only list of its parts and of their
// tensors' names. Names are those of the official files; `other` those of diffusers.
enum class UnitKind : std::uint8_t {
  conv_in,    // causal 3x3x3
  residual,   // norm, SiLU, causal 3x3x3, twice, and the input or a 1x1x1 convolution of it
  attention,  // over the positions of a frame, one head
  down_2d,    // 3x3, every second position
  down_3d,    // ... then every second frame
  up_2d,      // twice the rows and columns, 3x3
  up_3d,      // ... after twice the frames
  head,       // norm, SiLU, causal 3x3x3
  point,      // 1x1x1
};

// Where a unit keeps a tensor. Which ones a kind has, tensors_of() says.
struct TensorSlots {
  static constexpr int norm = 0, conv = 1, bias = 2;     // residual.2, qkv, resample, ...
  static constexpr int norm2 = 3, conv2 = 4, bias2 = 5;  // residual.6, proj, time_conv
  static constexpr int shortcut = 6, shortcut_bias = 7, count = 8;
};

struct UnitTensor {
  int slot;
  std::string name, other;  // full names
  Shape shape;              // in files
  std::int64_t taps = 0;    // 0: a vector
};

struct Unit {
  UnitKind kind;
  std::string name, other;  // prefixes without the dot
  std::int64_t in, out;     // channels
  bool tapped = false;      // `mid.*` of golden files has its result
};
std::vector<UnitTensor> tensors_of(const Unit& u);

// Units with a common input that gradient checkpointing keeps. With a shortcut (Wan2.2) the stage's
// input, folded or unfolded, is added to its result.
struct Stage {
  std::string name;
  std::vector<Unit> units;
  bool shortcut = false;
  bool tapped = false;
};
using Network = std::vector<Stage>;

Network encoder(const Config& c);  // ends with the 1x1x1 convolution to means and log-variances
Network decoder(const Config& c);  // begins with a 1x1x1 convolution of latents

}  // namespace ballast::wan_vae
