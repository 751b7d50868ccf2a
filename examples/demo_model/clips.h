#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ballast::demo {

// Clips of one shape that moves on a dark ground, with a caption that says all of it: "a red circle
// moves right".

inline constexpr std::int64_t kSide = 64, kFrames = 13;

enum class Form : std::uint8_t { circle, square, triangle, star, ring, cross };

struct Clip {
  Form form = Form::circle;
  std::size_t colour = 0, motion = 0;  // places in the lists of clips.cpp
  double radius = 0.2;                 // in parts of the picture, like all below
  double travel = 0.44;                // way of the middle, or growth of the radius
  double x = 0.5, y = 0.5;             // of the middle, half way
};

std::string caption(const Clip& c);
// Frame f of kFrames: [kSide][kSide][3], edges smoothed.
std::vector<std::uint8_t> draw(const Clip& c, std::int64_t frame);

// Every word that a caption may have.
std::vector<std::string_view> words();

// A list of clips that depends on nothing but its name and the seed:
//   base     circles, squares and triangles in all colours and motions; eight of each
//   new      stars, which the base has none of; two of each
//   shapes   all shapes there are, for the VAE
// `repeats` instead of so many of each; 0: as above. Empty where there is no such list.
std::vector<Clip> clips_of(std::string_view set, std::uint64_t seed, int repeats);

// NNNN.mp4 and NNNN.txt for each.
void write_clips(const std::string& folder, std::span<const Clip> clips);

}  // namespace ballast::demo
