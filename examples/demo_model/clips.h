#pragma once

#include <array>
#include <cstdint>
#include <optional>
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
  double radius = 0.2;                 // in parts of the image, like all below
  double travel = 0.44;                // way of the middle, or growth of the radius
  double x = 0.5, y = 0.5;             // of the middle, half way
};

std::string caption(const Clip& c);
// The clip that a caption asks for, with sizes and places as they are above; empty where no caption
// reads like that.
std::optional<Clip> asked_by(std::string_view caption);

inline constexpr std::array kForms = {Form::circle, Form::square, Form::triangle,
                                      Form::star,   Form::ring,   Form::cross};
inline constexpr std::array<std::uint8_t, 3> kGround = {22, 24, 34};

// Whether the form covers a point, from its middle in radii; y grows downwards.
bool covers(Form form, double x, double y);
// Of the colours that there are, the one nearest to this one.
std::size_t nearest_colour(const std::array<double, 3>& rgb);
struct Motion {
  std::string_view text;
  double x, y, growth;  // which way the middle goes, and whether the radius grows
};
std::span<const Motion> motions();
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
