#include "examples/demo_model/clips.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numbers>

#include "core/random.h"
#include "io/atomic_file.h"
#include "io/media_writer.h"

namespace ballast::demo {
namespace {

struct Colour {
  std::string_view name;
  std::array<std::uint8_t, 3> rgb;
};
constexpr std::array<Colour, 6> kColours = {{{"red", {230, 52, 52}},
                                             {"green", {52, 190, 84}},
                                             {"blue", {58, 108, 242}},
                                             {"yellow", {246, 212, 60}},
                                             {"purple", {172, 76, 222}},
                                             {"white", {240, 240, 240}}}};
constexpr std::array<Motion, 5> kMotions = {{{"moves left", -1, 0, 0},
                                             {"moves right", 1, 0, 0},
                                             {"rises", 0, -1, 0},
                                             {"falls", 0, 1, 0},
                                             {"grows", 0, 0, 1}}};

constexpr std::array<std::string_view, 6> kShapes = {"circle", "square", "triangle",
                                                     "star",   "ring",   "cross"};
constexpr std::array kBaseShapes = {Form::circle, Form::square, Form::triangle};
constexpr std::array kNewShapes = {Form::star};

// Inside a star of so many points whose corners alternate between two radii, a point up. With
// `inner` = cos(pi / points) it is the regular polygon.
bool in_star(double x, double y, int points, double inner) {
  const double step = std::numbers::pi / points;
  double angle = std::fmod(std::atan2(x, -y) + 4 * std::numbers::pi, 2 * step);
  if (angle > step) angle = 2 * step - angle;  // between a point (0) and the notch beside it
  const double r = std::hypot(x, y);
  const double px = r * std::cos(angle), py = r * std::sin(angle);
  // On the inner side of the line from (1, 0) to the notch.
  const double nx = inner * std::cos(step), ny = inner * std::sin(step);
  return (px - 1) * ny - py * (nx - 1) <= 0;
}

template <class Shapes>
std::vector<Clip> all_of(const Shapes& shapes, int repeats, std::string_view set,
                         std::uint64_t seed) {
  std::vector<Clip> clips;
  for (int n = 0; n < repeats; ++n) {
    for (const Form form : shapes) {
      for (std::size_t colour = 0; colour < kColours.size(); ++colour) {
        for (std::size_t motion = 0; motion < kMotions.size(); ++motion) {
          const RandomSource random =
              random_source(seed, "clips", static_cast<std::int64_t>(clips.size()), set);
          const auto within = [&](std::uint64_t i, double from, double to) {
            return from + (to - from) * static_cast<double>(uniform(random.word(i)));
          };
          const Motion& m = kMotions[motion];
          Clip c = {.form = form, .colour = colour, .motion = motion};
          c.radius = m.growth > 0 ? within(0, 0.19, 0.21) : within(0, 0.21, 0.25);
          c.travel = m.growth > 0 ? within(1, 0.16, 0.19) : within(1, 0.36, 0.44);
          // Along the way the middle of the image, beside it anywhere.
          c.x = m.x != 0 ? within(2, 0.47, 0.53) : within(2, 0.34, 0.66);
          c.y = m.y != 0 ? within(3, 0.47, 0.53) : within(3, 0.34, 0.66);
          clips.push_back(c);
        }
      }
    }
  }
  return clips;
}

}  // namespace

bool covers(Form form, double x, double y) {
  const double far = std::hypot(x, y), wide = std::max(std::abs(x), std::abs(y));
  switch (form) {
    case Form::circle:
      return far <= 0.95;
    case Form::square:
      return wide <= 0.86;
    case Form::triangle:
      return in_star(x, y - 0.18, 3, 0.5);
    case Form::star:
      return in_star(x, y - 0.06, 5, 0.42);
    case Form::ring:
      return far <= 1 && far >= 0.55;
    case Form::cross:
      return wide <= 0.95 && std::min(std::abs(x), std::abs(y)) <= 0.34;
  }
  return false;
}

std::size_t nearest_colour(const std::array<double, 3>& rgb) {
  const auto distance = [&](const Colour& c) {
    double sum = 0;
    for (std::size_t k = 0; k < 3; ++k) sum += (rgb[k] - c.rgb[k]) * (rgb[k] - c.rgb[k]);
    return sum;
  };
  return static_cast<std::size_t>(std::ranges::min_element(kColours, {}, distance) -
                                  kColours.begin());
}

std::span<const Motion> motions() { return kMotions; }

std::optional<Clip> asked_by(std::string_view text) {
  for (const Form form : kForms) {
    for (std::size_t colour = 0; colour < kColours.size(); ++colour) {
      for (std::size_t motion = 0; motion < kMotions.size(); ++motion) {
        const Clip c = {.form = form, .colour = colour, .motion = motion};
        if (caption(c) == text) return c;
      }
    }
  }
  return {};
}

std::string caption(const Clip& c) {
  return fmt::format("a {} {} {}", kColours[c.colour].name,
                     kShapes[static_cast<std::size_t>(c.form)], kMotions[c.motion].text);
}

std::vector<std::string_view> words() {
  std::vector<std::string_view> all = {"a"};
  for (const Colour& c : kColours) all.push_back(c.name);
  all.insert(all.end(), kShapes.begin(), kShapes.end());
  all.insert(all.end(), {"moves", "left", "right", "rises", "falls", "grows"});
  return all;
}

std::vector<std::uint8_t> draw(const Clip& c, std::int64_t frame) {
  constexpr int kSamples = 4;  // across a pixel
  const Motion& m = kMotions[c.motion];
  const double time = static_cast<double>(frame) / (kFrames - 1) - 0.5;
  const double x = c.x + m.x * c.travel * time, y = c.y + m.y * c.travel * time;
  const double radius = c.radius + m.growth * c.travel * time;
  const auto hits_in = [&](double left, double top) {  // points of a pixel that the shape covers
    if (std::hypot(left - x, top - y) > 1.1 * radius + 2. / kSide) return 0;
    int hits = 0;
    for (int i = 0; i < kSamples * kSamples; ++i) {
      const double dx = (i % kSamples + 0.5) / kSamples, dy = (i / kSamples + 0.5) / kSamples;
      if (covers(c.form, (left + dx / kSide - x) / radius, (top + dy / kSide - y) / radius)) ++hits;
    }
    return hits;
  };
  std::vector<std::uint8_t> pixels;
  pixels.reserve(kSide * kSide * 3);
  for (std::int64_t row = 0; row < kSide; ++row) {
    for (std::int64_t column = 0; column < kSide; ++column) {
      const int hits =
          hits_in(static_cast<double>(column) / kSide, static_cast<double>(row) / kSide);
      for (std::size_t k = 0; k < 3; ++k) {
        const int over = kColours[c.colour].rgb[k], under = kGround[k];
        pixels.push_back(static_cast<std::uint8_t>(
            under + ((over - under) * hits + kSamples * kSamples / 2) / (kSamples * kSamples)));
      }
    }
  }
  return pixels;
}

std::vector<Clip> clips_of(std::string_view set, std::uint64_t seed, int repeats) {
  if (set == "base") return all_of(kBaseShapes, repeats > 0 ? repeats : 8, set, seed);
  if (set == "new") return all_of(kNewShapes, repeats > 0 ? repeats : 2, set, seed);
  if (set == "shapes") return all_of(kForms, repeats > 0 ? repeats : 1, set, seed);
  return {};
}

void write_clips(const std::string& folder, std::span<const Clip> clips) {
  std::filesystem::create_directories(folder);
  for (std::size_t i = 0; i < clips.size(); ++i) {
    const std::string name = fmt::format("{}/{:04}", folder, i);
    const auto writer =
        open_media_writer(name + ".mp4", {.width = kSide, .height = kSide, .rate = {}, .crf = 4});
    for (std::int64_t f = 0; f < kFrames; ++f) writer->add(draw(clips[i], f));
    writer->finish();
    AtomicFile text(name + ".txt");
    text.write(caption(clips[i]) + "\n");
    text.commit(Durability::process);
  }
}

}  // namespace ballast::demo
