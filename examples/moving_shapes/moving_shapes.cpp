// moving_shapes FOLDER: everything a small training run needs, made from nothing but a seed.
//
//   start.safetensors  a small transformer of Wan's shape with random weights
//   base_motions/      clips of blobs and squares that drift left, right, up and down
//   new_motion/        clips of the same that shoot up to the right, faster
//   held_out/          more of those, to evaluate with
//
// Clips are latents, not pixels: each is drawn straight into 16 channels, as if an encoder had made
// them. The folders are ready-made caches (data/latent_cache.h).

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "data/latent_cache.h"
#include "io/safetensors_writer.h"
#include "models/wan/params.h"

namespace {

using namespace ballast;

struct Options {
  std::string folder;
  std::uint64_t seed = 1;
  std::int64_t dim = 128, layers = 6;
  std::int64_t frames = 4, side = 12;  // of the latents
  int base_clips = 96, new_clips = 24, held_out_clips = 8;
};

constexpr std::int64_t kChannels = 16, kTextDim = 64;

wan::Config model_of(const Options& o) {
  return {.name = "moving-shapes",
          .description = "",
          .dim = o.dim,
          .ffn_dim = 4 * o.dim,
          .heads = o.dim / 128,  // every released model has heads 128 wide
          .layers = o.layers,
          .in_dim = kChannels,
          .out_dim = kChannels,
          .freq_dim = 256,
          .text_dim = kTextDim,
          .text_len = 512};
}

std::vector<float> normals(const Options& o, const std::string& site, std::int64_t count,
                           double deviation, double mean = 0) {
  std::vector<float> v(static_cast<std::size_t>(count));
  fill_normal(random_source(o.seed, "moving_shapes", 0, site), 0, v.data(), count);
  for (float& x : v) x = static_cast<float>(mean + deviation * x);
  return v;
}

// Gains are one, biases zero, matrices keep the size of what they multiply, and the head is zero:
// the untrained model predicts zero and learns from there.
std::vector<float> first_values(const Options& o, const std::string& name, const Shape& shape) {
  const std::int64_t n = shape.elements();
  if (name.starts_with("head.head.") || name.ends_with("bias")) return normals(o, name, n, 0);
  if (name.find("norm") != std::string::npos) return normals(o, name, n, 0, 1);
  if (name.ends_with("modulation")) {
    return normals(o, name, n, 1 / std::sqrt(static_cast<double>(o.dim)));
  }
  return normals(o, name, n, 1 / std::sqrt(static_cast<double>(n / shape[0])));
}

void write_model(const Options& o) {
  std::vector<std::vector<float>> kept;  // the writer holds on to their addresses
  SafetensorsWriter writer({.metadata = {{"format", "pt"}}});
  each_parameter(model_of(o), [&](int, const std::string& name, const Shape& shape) {
    kept.push_back(first_values(o, name, shape));
    writer.add(name, DType::f32, shape, std::as_bytes(std::span(kept.back())));
  });
  writer.write(o.folder + "/start.safetensors", Durability::process);
}

enum class Form { blob, square };
constexpr std::array kForms = {"blob", "square"};
constexpr std::array kColours = {"red", "green", "blue"};

// How the picture moves while the clip lasts, in parts of its side.
struct Motion {
  const char* text;
  double x, y;
};
constexpr std::array kBaseMotions = {
    Motion{"drifting left", -0.45, 0}, Motion{"drifting right", 0.45, 0},
    Motion{"drifting up", 0, -0.45}, Motion{"drifting down", 0, 0.45}};
constexpr Motion kNewMotion = {"shooting up to the right", 0.7, -0.7};

struct Clip {
  Form form;
  const char* colour;
  Motion motion;
  double x, y;  // where it begins

  const char* form_text() const { return kForms[static_cast<std::size_t>(form)]; }
  std::string caption() const {
    return fmt::format("a {} {} {}", colour, form_text(), motion.text);
  }
};

// 1 inside, 0 outside, soft between; dx and dy from the middle, in parts of the picture.
double cover(Form form, double dx, double dy) {
  constexpr double kSize = 0.25, kSoft = 0.08;
  const double far = form == Form::blob ? std::hypot(dx, dy) : std::max(std::abs(dx), std::abs(dy));
  return 1 / (1 + std::exp((far - kSize) / kSoft));
}

// What leaves the picture on one side comes back on the other.
double wrapped(double distance) { return distance - std::round(distance); }

// A frame of a latent stands for four pictures, so it shows how fast the picture moves as well as
// what is where: here as a shift of all its values.
std::vector<float> draw(const Options& o, const Clip& c) {
  const std::vector<float> colour = normals(o, fmt::format("colour {}", c.colour), kChannels, 0.7);
  const std::vector<float> along_x = normals(o, "along x", kChannels, 1.5);
  const std::vector<float> along_y = normals(o, "along y", kChannels, 1.5);
  std::vector<float> latent(static_cast<std::size_t>(kChannels * o.frames * o.side * o.side));
  const auto side = static_cast<double>(o.side);
  const auto last_frame = static_cast<double>(std::max<std::int64_t>(1, o.frames - 1));
  std::size_t i = 0;
  for (std::size_t channel = 0; channel < kChannels; ++channel) {
    const double speed = c.motion.x * along_x[channel] + c.motion.y * along_y[channel];
    for (std::int64_t f = 0; f < o.frames; ++f) {
      const double time = static_cast<double>(f) / last_frame;
      for (std::int64_t row = 0; row < o.side; ++row) {
        const double dy =
            wrapped((static_cast<double>(row) + 0.5) / side - c.y - c.motion.y * time);
        for (std::int64_t column = 0; column < o.side; ++column, ++i) {
          const double dx =
              wrapped((static_cast<double>(column) + 0.5) / side - c.x - c.motion.x * time);
          latent[i] = static_cast<float>(speed + cover(c.form, dx, dy) * colour[channel]);
        }
      }
    }
  }
  return latent;
}

// One row for each thing that the caption says.
std::vector<float> text_rows(const Options& o, const Clip& c) {
  std::vector<float> rows;
  for (const char* words : {c.colour, c.form_text(), c.motion.text}) {
    const std::vector<float> row = normals(o, fmt::format("words {}", words), kTextDim, 1);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

void write_clips(const Options& o, const std::string& set, int count,
                 std::span<const Motion> motions) {
  for (int n = 0; n < count; ++n) {
    const RandomSource random = random_source(o.seed, "clips", n, set);
    const Clip c = {.form = static_cast<Form>(random.word(0) % kForms.size()),
                    .colour = kColours[random.word(1) % kColours.size()],
                    .motion = motions[static_cast<std::size_t>(n) % motions.size()],
                    .x = uniform(random.word(2)),
                    .y = uniform(random.word(3))};
    const std::vector<float> latent = draw(o, c), text = text_rows(o, c);
    data::write_cached_sample(o.folder + "/" + set, fmt::format("clip-{:03}", n),
                              {.shape = {kChannels, o.frames, o.side, o.side}, .latent = latent},
                              {.tokens = 3, .dim = kTextDim, .rows = text, .caption = c.caption()},
                              {.durability = Durability::process});
  }
}

void make(const Options& o) {
  validate(model_of(o));
  if (o.frames < 1 || o.frames > 64 || o.side < 2 || o.side > 256 || o.side % 2 != 0) {
    fail(ErrorCode::usage,
         fmt::format("latents of {} frames and side {}: expected 1 to 64 frames and an even side "
                     "from 2 to 256",
                     o.frames, o.side));
  }
  std::filesystem::create_directories(o.folder);
  write_model(o);
  write_clips(o, "base_motions", o.base_clips, kBaseMotions);
  write_clips(o, "new_motion", o.new_clips, std::span(&kNewMotion, 1));
  write_clips(o, "held_out", o.held_out_clips, std::span(&kNewMotion, 1));
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("a small random transformer and latents of moving shapes to train it on");
  app.add_option("folder", o.folder, "where they are written")->required();
  app.add_option("--seed", o.seed, "of weights and clips")->capture_default_str();
  app.add_option("--dim", o.dim, "width of the transformer, a multiple of 128")
      ->capture_default_str();
  app.add_option("--layers", o.layers, "its blocks")->capture_default_str();
  app.add_option("--frames", o.frames, "of a latent")->capture_default_str();
  app.add_option("--side", o.side, "rows and columns of a latent")->capture_default_str();
  app.add_option("--base-clips", o.base_clips, "clips to pre-train on")->capture_default_str();
  app.add_option("--new-clips", o.new_clips, "clips of the new motion")->capture_default_str();
  app.add_option("--held-out-clips", o.held_out_clips, "clips of it to evaluate with")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    make(o);
    return 0;
  } catch (const Error& e) {
    std::fprintf(stderr, "moving_shapes: %s\n", e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "moving_shapes: %s\n", e.what());
    return 1;
  }
}
