#include "examples/demo_model/latents.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <span>
#include <vector>

#include "core/convert.h"
#include "core/error.h"
#include "data/cache_file.h"
#include "data/media_folder.h"
#include "io/safetensors_writer.h"
#include "io/weight_files.h"
#include "models/wan_vae/weights.h"

namespace ballast::demo {
namespace {

// By channel, of normalised latents.
struct Statistics {
  std::vector<double> mean, deviation;
};

Statistics statistics_of(const std::string& cache, std::int64_t channels) {
  std::vector<double> sum(static_cast<std::size_t>(channels)), squares(sum.size());
  double count = 0;
  for (const std::string& name : data::file_names(cache + "/latents")) {
    const data::CacheFile file = data::CacheFile::open(cache + "/latents/" + name);
    const SafetensorsEntry& e = file.get("latent");
    if (e.shape.rank() != 4 || e.shape[0] != channels) {
      file.refuse(e, fmt::format("it is {}, expected {} channels", e.shape, channels));
    }
    std::vector<float> values(static_cast<std::size_t>(e.shape.elements()));
    file.read(e, values);
    const std::size_t cells = values.size() / sum.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double v = static_cast<double>(values[i]);
      sum[i / cells] += v;
      squares[i / cells] += v * v;
    }
    count += static_cast<double>(cells);
  }
  if (count == 0) fail(ErrorCode::input, fmt::format("{} holds no latents", cache));
  Statistics s;
  for (std::size_t c = 0; c < sum.size(); ++c) {
    const double mean = sum[c] / count;
    s.mean.push_back(mean);
    s.deviation.push_back(std::sqrt(std::max(squares[c] / count - mean * mean, 1e-8)));
  }
  return s;
}

using Tensors = std::vector<std::pair<const SafetensorsEntry*, std::vector<float>>>;

std::vector<float>& values_of(Tensors& all, std::string_view name) {
  for (auto& [entry, values] : all) {
    if (entry->name == name) return values;
  }
  fail(ErrorCode::input,
       fmt::format("the VAE has no tensor {}: official names are expected", name));
}

// raw = normalised * std + mean. With normalised' = (normalised - m) / d it is
// raw' = raw / d + (mean - (mean + m std) / d), and the decoder takes raw back from raw'.
void centre(Tensors& vae, const LatentStatistics& wan, const Statistics& s) {
  const std::size_t z = s.mean.size();
  std::vector<float>&to = values_of(vae, "conv1.weight"), &to_bias = values_of(vae, "conv1.bias");
  std::vector<float>&from = values_of(vae, "conv2.weight"),
  &from_bias = values_of(vae, "conv2.bias");
  check(to.size() == 4 * z * z && from.size() == z * z, "a VAE of {} channels", z);
  for (std::size_t c = 0; c < z; ++c) {
    const double mean = wan.mean.empty() ? 0 : static_cast<double>(wan.mean[c]);
    const double std = wan.std.empty() ? 1 : static_cast<double>(wan.std[c]);
    const double factor = 1 / s.deviation[c];
    const double shift = mean - (mean + s.mean[c] * std) * factor;
    const auto scaled = [&](float& v, double by) {
      v = static_cast<float>(static_cast<double>(v) * by);
    };
    for (std::size_t i = 0; i < 2 * z; ++i) scaled(to[c * 2 * z + i], factor);
    to_bias[c] = static_cast<float>(static_cast<double>(to_bias[c]) * factor + shift);
    to_bias[z + c] += static_cast<float>(2 * std::log(factor));  // the logarithm of the variance
    for (std::size_t o = 0; o < z; ++o) {
      scaled(from[o * z + c], 1 / factor);
      from_bias[o] -= static_cast<float>(static_cast<double>(from[o * z + c]) * shift);
    }
  }
}

}  // namespace

void write_centred_vae(const std::string& vae, const std::string& cache, const std::string& output,
                       bool bf16) {
  const WeightFiles file = WeightFiles::open(vae);
  const auto found = wan_vae::recognise(file);
  if (!found) fail(ErrorCode::input, fmt::format("{} holds no VAE of Wan", vae));
  Tensors tensors;
  for (const WeightTensor& t : file.tensors()) {
    std::vector<std::byte> stored(t.entry->bytes);
    const Extent at = file.extent(t);
    at.file->read(at.offset, stored);
    auto& values = tensors.emplace_back(t.entry, t.entry->shape.elements()).second;
    convert(stored.data(), file.dtype(t), values.data(), DType::f32, t.entry->shape.elements());
  }
  centre(tensors, latent_statistics(found->config), statistics_of(cache, found->config.z_dim));
  const DType dtype = bf16 ? DType::bf16 : DType::f32;
  std::deque<std::vector<std::byte>> kept;
  SafetensorsWriter writer({.metadata = {{"format", "pt"}}});
  for (const auto& [entry, values] : tensors) {
    std::vector<std::byte>& bytes = kept.emplace_back(values.size() * size_of(dtype));
    convert(values.data(), DType::f32, bytes.data(), dtype, std::ssize(values));
    writer.add(std::string(entry->name), dtype, entry->shape, bytes);
  }
  writer.write(output);
}

SampledLatent read_sampled_latent(const std::string& path) {
  const data::CacheFile file = data::CacheFile::open(path);
  const SafetensorsEntry& e = file.get("latent");
  SampledLatent latent = {.prompt = std::string(file.metadata("ballast.prompt"))};
  latent.values.resize(static_cast<std::size_t>(e.shape.elements()));
  file.read(e, latent.values);
  return latent;
}

double mean_squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) {
    fail(ErrorCode::input, fmt::format("latents of {} and {} numbers", a.size(), b.size()));
  }
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return sum / static_cast<double>(a.size());
}

void check_sets(const std::vector<std::string>& from, const std::vector<std::string>& of) {
  if (from.empty() || of.empty() || of.size() % from.size() != 0) {
    fail(ErrorCode::usage,
         fmt::format("{} latents to compare with {}: expected as many, or a multiple", of.size(),
                     from.size()));
  }
}

std::vector<Distance> distances(const std::vector<std::string>& from,
                                const std::vector<std::string>& of) {
  const std::size_t clips = from.size();
  check_sets(from, of);
  std::vector<Distance> all;
  for (std::size_t i = 0; i < of.size(); ++i) {
    const double d = mean_squared_distance(read_sampled_latent(from[i % clips]).values,
                                           read_sampled_latent(of[i]).values);
    if (i % clips == 0) all.push_back({.first = of[i], .clips = clips, .least = d, .most = d});
    Distance& set = all.back();
    set.mean += d / static_cast<double>(clips);
    set.least = std::min(set.least, d);
    set.most = std::max(set.most, d);
  }
  return all;
}

}  // namespace ballast::demo
