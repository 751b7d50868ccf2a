#include "app/commands/sample_files.h"

#include <filesystem>

#include "core/error.h"
#include "core/to_size.h"
#include "data/cache_file.h"
#include "io/safetensors_writer.h"

namespace ballast {

std::vector<float> read_text_states(const std::string& path, const wan::Config& model) {
  const data::CacheFile file = data::CacheFile::open(path);
  const SafetensorsEntry* rows = file.header().find("embeddings");
  for (const SafetensorsEntry& e : file.header().entries()) {
    if (!rows && (e.name == "text" || e.name.starts_with("varlen_t5_"))) rows = &e;
  }
  if (!rows) file.refuse("has no tensor embeddings, text or varlen_t5_*: text states are wanted");
  const Shape& s = rows->shape;
  const bool batched = s.rank() == 3 && s[0] == 1;
  if ((s.rank() != 2 && !batched) || s[s.rank() - 1] != model.text_dim ||
      s[s.rank() - 2] > model.text_len) {
    file.refuse(*rows, fmt::format("it is {}, expected up to {} rows of {}", s, model.text_len,
                                   model.text_dim));
  }
  std::vector<float> values(to_size(s.elements()));
  file.read(*rows, values);
  return values;
}

StoredLatent read_latent(const std::string& path, std::int64_t channels) {
  constexpr std::int64_t kMaxSide = 1 << 12;
  const data::CacheFile file = data::CacheFile::open(path);
  const SafetensorsEntry& e = file.get("latent");
  const Shape& s = e.shape;
  bool fits = s.rank() == 4 && s[0] == channels;
  for (int d = 1; fits && d < 4; ++d) fits = s[d] >= 1 && s[d] <= kMaxSide;
  if (!fits) file.refuse(e, fmt::format("it is {}, expected [{}, frames, h, w]", s, channels));
  StoredLatent latent;
  latent.size = {s[1], s[2], s[3]};
  latent.values.resize(to_size(s.elements()));
  file.read(e, latent.values);
  return latent;
}

void write_latent(const std::string& path, std::span<const float> values, std::int64_t channels,
                  const wan::LatentSize& z, Metadata metadata) {
  metadata["format"] = "pt";
  SafetensorsWriter writer({.metadata = std::move(metadata)});
  writer.add("latent", DType::f32, {channels, z.frames, z.height, z.width}, std::as_bytes(values));
  writer.write(path);
}

std::string numbered_path(const std::string& path, std::int64_t number, std::int64_t count) {
  if (count == 1) return path;
  const std::filesystem::path p(path);
  const std::string name = p.filename().string();
  const std::size_t dot = name.find('.', 1);
  const std::string numbered =
      dot == std::string::npos
          ? fmt::format("{}-{}", name, number)
          : fmt::format("{}-{}{}", name.substr(0, dot), number, name.substr(dot));
  return (p.parent_path() / numbered).string();
}

}  // namespace ballast
