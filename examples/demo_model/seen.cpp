#include "examples/demo_model/seen.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "examples/demo_model/prompt_in.h"
#include "io/media_reader.h"

namespace ballast::demo {
namespace {

constexpr double kPixels = kSide * kSide;
constexpr double kMinPixels = 40, kMaxPixels = kPixels / 2;
constexpr double kFarFromGround = 70;  // between colours, of 441
constexpr double kWay = 10;            // pixels; clips go 23 to 28

struct Shape {
  std::vector<bool> mask;
  double area = 0, x = 0, y = 0;  // pixels
  std::array<double, 3> colour{};
};

std::optional<Shape> shape_in(const std::vector<std::uint8_t>& frame) {
  Shape s;
  s.mask.resize(static_cast<std::size_t>(kSide * kSide));
  for (std::size_t i = 0; i < s.mask.size(); ++i) {
    double squares = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      const double d = frame[3 * i + k] - kGround[k];
      squares += d * d;
    }
    if (squares < kFarFromGround * kFarFromGround) continue;
    s.mask[i] = true;
    s.area += 1;
    s.x += static_cast<double>(i % kSide) + 0.5;
    s.y += static_cast<double>(i / kSide) + 0.5;
    for (std::size_t k = 0; k < 3; ++k) s.colour[k] += frame[3 * i + k];
  }
  if (s.area < kMinPixels || s.area > kMaxPixels) return {};
  s.x /= s.area;
  s.y /= s.area;
  for (double& c : s.colour) c /= s.area;
  return s;
}

// Area and middle of a form of radius 1.
struct Measures {
  double area = 0, x = 0, y = 0;
};
Measures measures_of(Form form) {
  constexpr int kPoints = 100;  // across a radius
  Measures m;
  for (int i = -kPoints * 5 / 4; i < kPoints * 5 / 4; ++i) {
    for (int j = -kPoints * 5 / 4; j < kPoints * 5 / 4; ++j) {
      const double x = (i + 0.5) / kPoints, y = (j + 0.5) / kPoints;
      if (!covers(form, x, y)) continue;
      m.area += 1;
      m.x += x;
      m.y += y;
    }
  }
  return {m.area / (kPoints * kPoints), m.x / m.area, m.y / m.area};
}

const Measures& kept_measures(Form form) {
  static const auto all = [] {
    std::array<Measures, kForms.size()> a;
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = measures_of(kForms[i]);
    return a;
  }();
  return all[static_cast<std::size_t>(form)];
}

double overlap_of(const Shape& s, Form form) {
  const Measures& m = kept_measures(form);
  const double radius = std::sqrt(s.area / m.area);
  double both = 0, either = 0;
  for (std::size_t i = 0; i < s.mask.size(); ++i) {
    const double x = (static_cast<double>(i % kSide) + 0.5 - s.x) / radius + m.x;
    const double y = (static_cast<double>(i / kSide) + 0.5 - s.y) / radius + m.y;
    const bool drawn = covers(form, x, y);
    both += drawn && s.mask[i];
    either += drawn || s.mask[i];
  }
  return both / either;
}

bool moves(const Shape& first, const Shape& last, const Motion& m) {
  const double x = last.x - first.x, y = last.y - first.y, growth = last.area / first.area;
  if (m.growth > 0) return growth > 2 && std::hypot(x, y) < kWay;
  const double along = m.x * x + m.y * y, across = std::abs(m.x != 0 ? y : x);
  return along > kWay && across < along / 2 && growth < 2;
}

std::vector<std::vector<std::uint8_t>> frames_of(MediaReader& reader) {
  const MediaInfo& info = reader.info();
  if (info.width != kSide || info.height != kSide || info.frames < 2) {
    fail(ErrorCode::input,
         fmt::format("{} is {} x {} with {} frames: expected {} x {}, at least 2", reader.path(),
                     info.width, info.height, info.frames, kSide, kSide));
  }
  std::vector<std::vector<std::uint8_t>> frames(static_cast<std::size_t>(info.frames));
  for (std::vector<std::uint8_t>& f : frames) {
    f.resize(reader.frame_bytes());
    reader.next(f);
  }
  return frames;
}

}  // namespace

Seen seen_in(std::span<const std::vector<std::uint8_t>> frames, const Clip& asked) {
  Seen seen;
  std::array<double, kForms.size()> overlaps{};
  std::array<double, 3> colour{};
  double shapes = 0;
  std::optional<Shape> first, last;
  for (std::size_t f = 0; f < frames.size(); ++f) {
    const std::optional<Shape> s = shape_in(frames[f]);
    if (f == 0) first = s;
    if (f + 1 == frames.size()) last = s;
    if (!s) continue;
    shapes += 1;
    for (std::size_t k = 0; k < 3; ++k) colour[k] += s->colour[k];
    for (const Form form : kForms) overlaps[static_cast<std::size_t>(form)] += overlap_of(*s, form);
  }
  if (2 * shapes < static_cast<double>(frames.size())) return seen;
  for (double& c : colour) c /= shapes;
  seen.colour = nearest_colour(colour) == asked.colour;
  const auto form = static_cast<std::size_t>(asked.form);
  seen.form = overlaps[form] == std::ranges::max(overlaps);
  seen.overlap = overlaps[form] / static_cast<double>(frames.size());
  seen.motion = first && last && moves(*first, *last, motions()[asked.motion]);
  return seen;
}

Adherence adherence_of(const std::vector<std::string>& clips) {
  Adherence a;
  for (const std::string& path : clips) {
    MediaReader reader = MediaReader::open(path);
    const std::string prompt = prompt_in(reader.info());
    const std::optional<Clip> asked = asked_by(prompt);
    if (!asked) {
      fail(ErrorCode::input,
           fmt::format("{} was made for \"{}\", which is no caption of the demo", path, prompt));
    }
    const Seen s = seen_in(frames_of(reader), *asked);
    ++a.clips;
    a.colour += s.colour;
    a.form += s.form;
    a.motion += s.motion;
    a.all += s.all();
    a.overlap += s.overlap / static_cast<double>(clips.size());
  }
  return a;
}

}  // namespace ballast::demo
