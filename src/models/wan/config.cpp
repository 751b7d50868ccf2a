#include "models/wan/config.h"

#include <algorithm>

#include "core/error.h"

namespace ballast::wan {

std::span<const Config> presets() {
  static const std::array<Config, 5> kPresets = {{
      {.name = "wan2.2-ti2v-5b",
       .description = "Wan2.2 TI2V-5B: text or image to video, 720p",
       .dim = 3072,
       .ffn_dim = 14336,
       .heads = 24,
       .layers = 30,
       .in_dim = 48,
       .out_dim = 48,
       .spatial_stride = 16},
      {.name = "wan2.2-t2v-a14b",
       .description = "Wan2.2 T2V-A14B: text to video, one of two experts",
       .dim = 5120,
       .ffn_dim = 13824,
       .heads = 40,
       .layers = 40,
       .in_dim = 16,
       .out_dim = 16,
       .experts = 2},
      {.name = "wan2.2-i2v-a14b",
       .description = "Wan2.2 I2V-A14B: image to video, one of two experts",
       .dim = 5120,
       .ffn_dim = 13824,
       .heads = 40,
       .layers = 40,
       .in_dim = 36,
       .out_dim = 16,
       .experts = 2},
      {.name = "wan2.1-t2v-1.3b",
       .description = "Wan2.1 T2V-1.3B: text to video, 480p",
       .dim = 1536,
       .ffn_dim = 8960,
       .heads = 12,
       .layers = 30,
       .in_dim = 16,
       .out_dim = 16},
      {.name = "wan2.1-t2v-14b",
       .description = "Wan2.1 T2V-14B: text to video",
       .dim = 5120,
       .ffn_dim = 13824,
       .heads = 40,
       .layers = 40,
       .in_dim = 16,
       .out_dim = 16},
  }};
  return kPresets;
}

std::optional<Config> find_preset(std::string_view name) {
  const auto all = presets();
  const auto it = std::ranges::find(all, name, &Config::name);
  if (it == all.end()) return std::nullopt;
  return *it;
}

void validate(const Config& c) {
  const auto within = [&](const char* field, std::int64_t v, std::int64_t least,
                          std::int64_t most) {
    if (v >= least && v <= most) return;
    fail(ErrorCode::input, "model config {}: {} is {}, expected {} to {}", c.name, field, v, least,
         most);
  };
  within("dim", c.dim, 1, 1 << 16);
  within("ffn_dim", c.ffn_dim, 1, 1 << 18);
  within("num_heads", c.heads, 1, 1 << 12);
  within("num_layers", c.layers, 1, 1 << 12);
  within("in_dim", c.in_dim, 1, 1 << 12);
  within("out_dim", c.out_dim, 1, c.in_dim);
  within("freq_dim", c.freq_dim, 2, 1 << 14);
  within("text_dim", c.text_dim, 1, 1 << 16);
  within("text_len", c.text_len, 1, 1 << 14);
  if (c.dim % c.heads != 0 || c.head_dim() % 2 != 0) {
    fail(ErrorCode::input,
         "model config {}: dim {} is not an even number of elements for each of {} heads", c.name,
         c.dim, c.heads);
  }
  if (c.freq_dim % 2 != 0) {
    fail(ErrorCode::input, "model config {}: freq_dim {} is odd", c.name, c.freq_dim);
  }
  if (!(c.eps > 0 && c.eps < 1)) {
    fail(ErrorCode::input, "model config {}: eps is {}", c.name, c.eps);
  }
}

LatentSize latent_size(const Config& c, std::int64_t frames, std::int64_t height,
                       std::int64_t width) {
  const std::int64_t step = 2 * c.spatial_stride;
  if (frames < 1 || (frames - 1) % 4 != 0) {
    const std::int64_t below = std::max<std::int64_t>(1, (frames - 1) / 4 * 4 + 1);
    fail(ErrorCode::usage, fmt::format("--frames {}: frames must be 4n + 1", frames),
         {{fmt::format("--frames {}", below), "the nearest below"},
          {fmt::format("--frames {}", below + 4), "the nearest above"}});
  }
  const auto side = [&](const char* flag, std::int64_t pixels) {
    if (pixels >= step && pixels % step == 0) return pixels / c.spatial_stride;
    const std::int64_t below = std::max(step, pixels / step * step);
    fail(ErrorCode::usage,
         fmt::format("{} {}: {} needs a multiple of {} pixels", flag, pixels, c.name, step),
         {{fmt::format("{} {}", flag, below), "the nearest below"},
          {fmt::format("{} {}", flag, below + step), "the nearest above"}});
  };
  const LatentSize size = {(frames - 1) / 4 + 1, side("--height", height), side("--width", width)};
  for (const std::int64_t n : size.grid()) {
    if (n > 1024) {
      fail(ErrorCode::usage,
           "{} x {} x {} gives a token grid side of {}; rotary positions end at 1024", frames,
           height, width, n);
    }
  }
  return size;
}

}  // namespace ballast::wan
