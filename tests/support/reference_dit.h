#pragma once

// The double-precision reference with the weights and inputs of tests/support/tiny_dit.h.

#include "core/to_size.h"
#include "models/wan/params.h"
#include "tests/ref/dit.h"
#include "tests/support/tiny_dit.h"

namespace ballast::support {

inline std::vector<double> widened(const std::vector<float>& v) { return {v.begin(), v.end()}; }

inline ref::Dit reference_dit(const wan::Config& config) {
  std::map<std::string, std::vector<double>> weights;
  each_parameter(config, [&](int, const std::string& name, const Shape& shape) {
    weights[name] = widened(parameter_values(name, shape));
  });
  return {config, std::move(weights)};
}

inline std::vector<ref::DitSample> reference_samples(const wan::Config& c, const TinyBatch& batch) {
  std::vector<ref::DitSample> samples;
  for (std::size_t i = 0; i < batch.latents.size(); ++i) {
    const wan::LatentSize& z = batch.latents[i];
    const std::string n = std::to_string(batch.first + i);
    const std::int64_t cells = z.frames * z.height * z.width;
    const auto values = [&](const char* name, std::int64_t count) {
      return widened(normal_values(name + n, count, 1));
    };
    ref::DitSample& s = samples.emplace_back();
    s.size = z;
    s.latent = values("latent", c.out_dim * cells);
    s.conditioning = values("y", c.conditioning() * cells);
    s.context = values("context", batch.text_lens[i] * c.text_dim);
    s.context.resize(to_size(c.text_len * c.text_dim), 0.0);
    s.target = values("target", c.out_dim * cells);
    s.timestep_row = batch.rows[i];
  }
  return samples;
}

}  // namespace ballast::support
