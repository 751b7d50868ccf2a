#include "data/sample_layout.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::data {
namespace {

constexpr std::int64_t kMaskChannels = 4;
constexpr std::int64_t kLargestDimension = 1 << 20;

void check_float(const CacheFile& file, const SafetensorsEntry& e) {
  const auto dtype = memory_dtype(e.dtype);
  if (dtype && info(*dtype).floating) return;
  file.refuse(e, fmt::format("floating-point numbers were expected, the file has {}", e.dtype));
}

void check_grid(const CacheFile& file, const SafetensorsEntry& e) {
  if (e.shape.rank() != 4) {
    file.refuse(e,
                fmt::format("[channels, frames, height, width] was expected, found {}", e.shape));
  }
  for (const std::int64_t d : e.shape) {
    if (d < 1 || d > kLargestDimension) file.refuse(e, fmt::format("impossible size {}", e.shape));
  }
  check_float(file, e);
}

bool same_grid(const Shape& a, const Shape& b) {
  return std::equal(a.begin() + 1, a.end(), b.begin() + 1, b.end());
}

// musubi-tuner writes type and grid into the names; a file whose name and content disagree was
// tampered with or cut together wrongly.
void check_musubi_name(const CacheFile& file, const SafetensorsEntry& e, std::string_view prefix) {
  std::string_view word = "float32";
  if (e.dtype == FileDType::bf16) word = "bfloat16";
  if (e.dtype == FileDType::f16) word = "float16";
  const std::string expected =
      fmt::format("{}{}x{}x{}_{}", prefix, e.shape[1], e.shape[2], e.shape[3], word);
  if (e.name == expected) return;
  file.refuse(e, fmt::format("holds {} of shape {}, whose name is {}", e.dtype, e.shape, expected));
}

const SafetensorsEntry* find_conditioning(const CacheFile& file, SampleLayout layout) {
  if (layout == SampleLayout::ballast) return file.header().find("conditioning");
  if (layout == SampleLayout::musubi) return file.find_numbered("latents_image_");
  return nullptr;
}

void check_conditioning(const CacheFile& file, LatentTensors& t, SampleLayout layout,
                        const ModelNeeds& needs) {
  t.conditioning = find_conditioning(file, layout);
  if (t.conditioning == nullptr) {
    file.refuse(
        fmt::format("has no conditioning, and the model takes {} channels of it: it was "
                    "cached for a text-to-video model",
                    needs.conditioning_channels));
  }
  check_grid(file, *t.conditioning);
  if (layout == SampleLayout::musubi) check_musubi_name(file, *t.conditioning, "latents_image_");
  const std::int64_t channels = t.conditioning->shape[0];
  const bool fits = channels == needs.conditioning_channels ||
                    channels + kMaskChannels == needs.conditioning_channels;
  if (!fits || !same_grid(t.conditioning->shape, t.latent->shape)) {
    file.refuse(*t.conditioning,
                fmt::format("shape {} beside a latent of {}; the model takes {} channels, {} of "
                            "them the mask",
                            t.conditioning->shape, t.latent->shape, needs.conditioning_channels,
                            kMaskChannels));
  }
}

}  // namespace

namespace {

LatentTensors find_pixels(const CacheFile& file, const ModelNeeds& needs) {
  LatentTensors t;
  t.latent = &file.get("pixels");
  const Shape& s = t.latent->shape;
  bool sound = t.latent->dtype == FileDType::u8 && s.rank() == 4 && s[3] == 3;
  for (const std::int64_t d : s) sound = sound && d >= 1 && d <= kLargestDimension;
  if (!sound) {
    file.refuse(*t.latent, fmt::format("U8 [frames, height, width, 3] was expected, found {} {}",
                                       t.latent->dtype, s));
  }
  t.shape = {s[3], s[0], s[1], s[2]};
  if (s[1] % needs.pixel_multiple != 0 || s[2] % needs.pixel_multiple != 0) {
    file.refuse(*t.latent, fmt::format("height and width of {} are not multiples of {}", s,
                                       needs.pixel_multiple));
  }
  return t;
}

}  // namespace

LatentTensors find_latent(const CacheFile& file, SampleLayout layout, const ModelNeeds& needs) {
  if (needs.pixels) return find_pixels(file, needs);
  LatentTensors t;
  t.latent = layout == SampleLayout::musubi ? file.find_numbered("latents_") : &file.get("latent");
  if (t.latent == nullptr) file.refuse("has no tensor latents_FxHxW_dtype");
  check_grid(file, *t.latent);
  if (layout == SampleLayout::musubi) check_musubi_name(file, *t.latent, "latents_");
  const Shape& s = t.latent->shape;
  t.shape = {s[0], s[1], s[2], s[3]};
  if (t.shape.channels != needs.latent_channels) {
    file.refuse(*t.latent, fmt::format("has {} channels, the model takes {}: it was cached for "
                                       "another model",
                                       t.shape.channels, needs.latent_channels));
  }
  const std::int64_t cells = std::max<std::int64_t>(needs.pixel_multiple / needs.spatial_stride, 1);
  if (t.shape.height % cells != 0 || t.shape.width % cells != 0) {
    file.refuse(*t.latent, fmt::format("height and width of {} are not multiples of {}", s, cells));
  }
  if (needs.conditioning_channels > 0) check_conditioning(file, t, layout, needs);
  if (layout == SampleLayout::ballast) t.mask = file.header().find("mask");
  if (t.mask != nullptr) {
    check_float(file, *t.mask);
    if (t.mask->shape != Shape{t.shape.height, t.shape.width}) {
      file.refuse(*t.mask, fmt::format("shape {} beside a latent of {}", t.mask->shape, s));
    }
  }
  return t;
}

const SafetensorsEntry& find_text(const CacheFile& file, SampleLayout layout,
                                  const ModelNeeds& needs) {
  const SafetensorsEntry* rows = nullptr;
  if (layout == SampleLayout::ballast) rows = &file.get("text");
  if (layout == SampleLayout::embedding_pair) rows = &file.get("embeddings");
  if (layout == SampleLayout::musubi) {
    for (const SafetensorsEntry& e : file.header().entries()) {
      if (e.name.starts_with("varlen_t5_")) rows = &e;
    }
    if (rows == nullptr) file.refuse("has no tensor varlen_t5_dtype");
  }
  check_float(file, *rows);
  if (rows->shape.rank() != 2 || rows->shape[1] != needs.text_dim ||
      rows->shape[0] > needs.text_len) {
    file.refuse(*rows, fmt::format("shape {}; the model takes at most {} rows of {}", rows->shape,
                                   needs.text_len, needs.text_dim));
  }
  return *rows;
}

void read_latent(const CacheFile& file, const LatentTensors& t, SampleLayout layout,
                 const ModelNeeds& needs, std::span<float> to) {
  if (t.latent->dtype == FileDType::u8) return file.read_pixels(*t.latent, to);
  file.read(*t.latent, to);
  if (layout != SampleLayout::embedding_pair) return;
  const LatentStatistics by = needs.of_pairs();
  if (t.shape.channels != std::ssize(by.mean)) {
    file.refuse(*t.latent, fmt::format("{} channels; statistics to normalise with are known for {}",
                                       t.shape.channels, by.mean.size()));
  }
  const std::size_t per_channel = to.size() / by.mean.size();
  for (std::size_t c = 0; c < by.mean.size(); ++c) {
    for (float& x : to.subspan(c * per_channel, per_channel)) {
      x = (x - by.mean[c]) / by.std[c];
    }
  }
}

void read_conditioning(const CacheFile& file, const LatentTensors& t, std::span<float> to) {
  const auto stored = to_size(t.conditioning->shape.elements());
  const std::span<float> mask = to.first(to.size() - stored);
  const auto frame = to_size(t.shape.height * t.shape.width);
  const auto frames = to_size(t.shape.frames);
  for (std::size_t i = 0; i < mask.size(); i += frame) {
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(i), frame,
                (i / frame) % frames == 0 ? 1.0f : 0.0f);
  }
  file.read(*t.conditioning, to.subspan(mask.size()));
}

void read_mask(const CacheFile& file, const LatentTensors& t, std::span<float> to) {
  if (t.mask == nullptr) return static_cast<void>(std::fill(to.begin(), to.end(), 1.0f));
  const std::span<float> first = to.first(to_size(t.mask->shape.elements()));
  file.read(*t.mask, first);
  for (std::size_t at = first.size(); at < to.size(); at += first.size()) {
    std::copy(first.begin(), first.end(), to.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

void read_text(const CacheFile& file, const SafetensorsEntry& rows, std::span<float> to) {
  const auto n = to_size(rows.shape.elements());
  file.read(rows, to.first(n));
  std::fill(to.begin() + static_cast<std::ptrdiff_t>(n), to.end(), 0.0f);
}

}  // namespace ballast::data
