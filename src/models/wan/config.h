#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ballast::wan {

// Sizes of one diffusion transformer. Patches are always 1 x 2 x 2.
struct Config {
  std::string name;  // "wan2.2-t2v-a14b"
  std::string description;
  std::int64_t dim = 0;      // C
  std::int64_t ffn_dim = 0;  // F
  std::int64_t heads = 0;    // H
  std::int64_t layers = 0;
  std::int64_t in_dim = 0;   // channels of the latent plus conditioning channels
  std::int64_t out_dim = 0;  // channels of the latent
  std::int64_t freq_dim = 256;
  std::int64_t text_dim = 4096;
  std::int64_t text_len = 512;
  float eps = 1e-6f;
  std::int64_t spatial_stride = 8;  // pixels per latent cell of the VAE that goes with it
  int experts = 1;

  std::int64_t head_dim() const { return dim / heads; }
  std::int64_t conditioning() const { return in_dim - out_dim; }  // channels of y
};

// Fails with ErrorCode::input, naming the field, when sizes contradict each other or are absurd.
void validate(const Config& c);

// wan2.2-ti2v-5b, wan2.2-t2v-a14b, wan2.2-i2v-a14b, wan2.1-t2v-1.3b, wan2.1-t2v-14b
std::span<const Config> presets();
std::optional<Config> find_preset(std::string_view name);

// Frames, rows and columns of a latent; its tokens are frames x rows/2 x columns/2.
struct LatentSize {
  std::int64_t frames = 0, height = 0, width = 0;

  std::int64_t cells() const { return frames * height * width; }
  std::int64_t tokens() const { return frames * (height / 2) * (width / 2); }
  std::array<std::int64_t, 3> grid() const { return {frames, height / 2, width / 2}; }

  friend bool operator==(const LatentSize&, const LatentSize&) = default;
};

// Latent of a clip of `frames` images (4n + 1) of height x width pixels; fails with what would
// fit.
LatentSize latent_size(const Config& c, std::int64_t frames, std::int64_t height,
                       std::int64_t width);

}  // namespace ballast::wan
