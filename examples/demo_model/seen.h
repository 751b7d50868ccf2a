#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/demo_model/clips.h"

namespace ballast::demo {

// Whether a clip shows what its caption asked for, measured on its pixels. What differs from the
// dark ground is the shape; of it
//   colour  the mean, nearest to the asked one of all colours
//   form    drawn with the same area and middle, the asked one of all forms covers it best
//   motion  from the first frame to the last the middle goes the asked way, the other way less; or
//           the area grows to more than twice
// Nothing is seen in frames whose shape has fewer than 40 of 4096 pixels or more than half of all.
struct Seen {
  bool colour = false, form = false, motion = false;
  double overlap = 0;  // intersection over union of the shape with the asked form, mean of frames

  bool all() const { return colour && form && motion; }
};
// Frames are [kSide][kSide][3], in their order, at least two.
Seen seen_in(std::span<const std::vector<std::uint8_t>> frames, const Clip& asked);

// Of clips that `ballast sample` wrote as videos of the demo's size, by the prompts in them.
struct Adherence {
  std::size_t clips = 0, colour = 0, form = 0, motion = 0, all = 0;
  double overlap = 0;
};
Adherence adherence_of(const std::vector<std::string>& clips);

}  // namespace ballast::demo
