#include "data/other_caches.h"

#include <vector>

#include "core/error.h"
#include "core/to_size.h"

namespace ballast::data {
namespace {

constexpr std::int64_t kImageMaskChannels = 4;

std::string_view torch_name(DType dtype) {
  if (dtype == DType::bf16) return "bfloat16";
  return dtype == DType::f16 ? "float16" : "float32";
}

std::string grid_name(std::string_view prefix, const LatentShape& s, DType dtype) {
  return fmt::format("{}{}x{}x{}_{}", prefix, s.frames, s.height, s.width, torch_name(dtype));
}

}  // namespace

std::string source_text(const SourceStamp& s, std::string_view statistics) {
  return fmt::format("{}|{}|{}{}{}", cache_key(s.name), s.bytes, s.modified_ns,
                     statistics.empty() ? "" : "~", statistics);
}

std::string musubi_latent_name(std::string_view stem, std::int64_t start,
                               const MusubiLatent& size) {
  const std::string clip =
      size.frames > 0 ? fmt::format("_{:05d}-{:03d}", start, size.frames) : std::string();
  return fmt::format("{}{}_{:04d}x{:04d}_wan", stem, clip, size.width, size.height);
}

void write_musubi_latent(const std::string& path, const SourceStamp& source,
                         const MusubiLatent& size, const CachedLatent& l, CacheWriting how) {
  Metadata metadata{{"architecture", "wan"},
                    {"width", fmt::format("{}", size.width)},
                    {"height", fmt::format("{}", size.height)},
                    {"format_version", "1.0.1"},
                    {std::string(kSourceKey), source_text(source, size.statistics)}};
  if (size.frames > 0) metadata["frame_count"] = fmt::format("{}", size.frames);
  SafetensorsWriter writer({.metadata = std::move(metadata)});
  const LatentShape& s = l.shape;
  add_values(writer, grid_name("latents_", s, how.store), {s.channels, s.frames, s.height, s.width},
             l.latent, how.store);
  std::vector<float> conditioning;
  if (l.conditioning_channels > 0) {
    const auto cells = to_size(s.height * s.width);
    const auto frames = to_size(s.frames);
    for (std::size_t i = 0; i < kImageMaskChannels * frames; ++i) {
      conditioning.insert(conditioning.end(), cells, i % frames == 0 ? 1.0f : 0.0f);
    }
    conditioning.insert(conditioning.end(), l.conditioning.begin(), l.conditioning.end());
    add_values(writer, grid_name("latents_image_", s, how.store),
               {l.conditioning_channels + kImageMaskChannels, s.frames, s.height, s.width},
               conditioning, how.store);
  }
  write_cache_file(path, std::move(writer), how.durability);
}

void write_musubi_text(const std::string& path, const CachedText& text, CacheWriting how) {
  SafetensorsWriter writer({.metadata = {{"architecture", "wan"},
                                         {"caption1", std::string(text.caption)},
                                         {"format_version", "1.0.1"}}});
  add_values(writer, fmt::format("varlen_t5_{}", torch_name(how.store)), {text.tokens, text.dim},
             text.rows, how.store);
  write_cache_file(path, std::move(writer), how.durability);
}

void write_pair_latent(const std::string& path, const SourceStamp& source, const CachedLatent& l,
                       const LatentStatistics& by, CacheWriting how) {
  const LatentShape& s = l.shape;
  if (s.channels != std::ssize(by.mean)) {
    fail(ErrorCode::input,
         "{}: a latent of {} channels; pairs of X.latent.safetensors and X.safetensors "
         "are for TI2V-5B, whose VAE has {}",
         path, s.channels, by.mean.size());
  }
  std::vector<float> values(l.latent.begin(), l.latent.end());
  const std::size_t per_channel = values.size() / by.mean.size();
  for (std::size_t c = 0; c < by.mean.size(); ++c) {
    for (float& x : std::span(values).subspan(c * per_channel, per_channel)) {
      x = x * by.std[c] + by.mean[c];
    }
  }
  SafetensorsWriter writer({.metadata = {{std::string(kSourceKey), source_text(source)}}});
  add_values(writer, "latent", {s.channels, s.frames, s.height, s.width}, values, how.store);
  write_cache_file(path, std::move(writer), how.durability);
}

void write_pair_text(const std::string& path, const CachedText& text, std::int64_t text_len,
                     CacheWriting how) {
  check(text.tokens <= text_len, "{} rows of text, {} are the most", text.tokens, text_len);
  std::vector<float> rows(text.rows.begin(), text.rows.end());
  rows.resize(to_size(text_len * text.dim));
  SafetensorsWriter writer({.metadata = {{"caption1", std::string(text.caption)}}});
  add_values(writer, "embeddings", {text_len, text.dim}, rows, how.store);
  write_cache_file(path, std::move(writer), how.durability);
}

}  // namespace ballast::data
