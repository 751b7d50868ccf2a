#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/convert.h"
#include "core/to_size.h"
#include "data/dataset.h"
#include "data/latent_cache.h"
#include "io/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace ballast::test {

// A model that wants little of its samples.
inline data::ModelNeeds tiny_needs() {
  data::ModelNeeds n;
  n.latent_channels = 2;
  n.text_len = 4;
  n.text_dim = 3;
  return n;
}

// first, first + 1, ...: what came from where can be seen.
inline std::vector<float> counted(std::int64_t n, float first) {
  std::vector<float> v(to_size(n));
  for (float& x : v) x = first++;
  return v;
}

inline constexpr data::CacheWriting kQuickly{.durability = Durability::process};

// A sample of a ready-made cache: latent counted from `first`, text [tokens, 3] from -first.
inline void add_sample(const std::string& folder, const std::string& id,
                       const data::LatentShape& shape, float first = 1, std::int64_t tokens = 2,
                       data::CacheWriting how = kQuickly) {
  const std::vector<float> latent = counted(shape.elements(), first);
  const std::vector<float> text = counted(tokens * 3, -first);
  data::write_cached_sample(
      folder, id, {.shape = shape, .latent = latent},
      {.tokens = tokens, .dim = 3, .rows = text, .caption = "a caption of " + id}, how);
}

// Writes a safetensors file of f32 tensors, each counted from 1.
inline void write_tensors(const std::string& path,
                          const std::vector<std::pair<std::string, Shape>>& tensors,
                          DType dtype = DType::f32) {
  SafetensorsWriter writer;
  std::vector<std::vector<std::byte>> bytes;
  bytes.reserve(tensors.size());
  for (const auto& [name, shape] : tensors) {
    const std::vector<float> values = counted(shape.elements(), 1);
    auto& raw = bytes.emplace_back(values.size() * size_of(dtype));
    convert(values.data(), DType::f32, raw.data(), dtype, shape.elements());
    writer.add(name, dtype, shape, std::span<const std::byte>(raw));
  }
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  writer.write(path, Durability::process);
}

// Memory for one sample of a dataset, filled with a value that no sample has.
struct SampleMemory {
  SampleMemory(const data::ModelNeeds& needs, const data::LatentShape& shape,
               bool with_mask = false)
      : latent(to_size(shape.elements()), 77.0f),
        conditioning(
            to_size(needs.conditioning_channels * shape.frames * shape.height * shape.width),
            77.0f),
        context(to_size(needs.text_len * needs.text_dim), 77.0f),
        mask(with_mask ? to_size(shape.frames * shape.height * shape.width) : 0, 77.0f) {}

  data::SampleTarget target() { return {latent, conditioning, context, mask}; }

  std::vector<float> latent, conditioning, context, mask;
};

inline SampleMemory read_sample(const data::Dataset& d, const data::ModelNeeds& needs,
                                std::uint32_t sample, bool empty = false) {
  SampleMemory m(needs, d.buckets()[d.samples()[sample].bucket].shape, d.has_masks());
  d.read(sample, empty, m.target());
  return m;
}

// How often each sample occurs in an epoch, by id.
inline std::map<std::string, int> occurrences(const data::Dataset& d, std::int64_t epoch = 0,
                                              std::uint64_t seed = 1) {
  std::map<std::string, int> n;
  for (const auto& step : d.epoch(epoch, seed)) {
    for (const std::uint32_t s : step.samples) ++n[d.samples()[s].id];
  }
  return n;
}

inline std::vector<std::vector<std::uint32_t>> order_of(const data::Dataset& d, std::int64_t epoch,
                                                        std::uint64_t seed) {
  std::vector<std::vector<std::uint32_t>> order;
  for (const auto& step : d.epoch(epoch, seed)) order.push_back(step.samples);
  return order;
}

inline std::string all_notes(const data::Dataset& d) {
  std::string all;
  for (const std::string& n : d.notes()) all += n + "\n";
  return all;
}

}  // namespace ballast::test
