#include "models/wan_vae/recognise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "io/json_reader.h"
#include "models/wan_vae/latent_statistics.h"

namespace ballast::wan_vae {
namespace {

std::vector<float> list_of(const WeightFiles& checkpoint, const char* key, std::int64_t count) {
  const Metadata& metadata = checkpoint.files().front().header().metadata();
  const auto found = metadata.find(key);
  if (found == metadata.end()) return {};
  std::vector<float> values;
  JsonReader json({.text = found->second, .path = checkpoint.path(), .rule = "vae.statistics"});
  json.open_array();
  while (json.next_element()) values.push_back(static_cast<float>(json.number()));
  json.finish();
  const bool positive = std::ranges::all_of(values, [&](float x) {
    // A std below the smallest normal float would make infinities of latents.
    const bool divides = std::string_view(key) == kLatentStdKey;
    return std::isfinite(x) && (!divides || x >= std::numeric_limits<float>::min());
  });
  if (std::ssize(values) != count || !positive) {
    fail(ErrorCode::input, "{}: {} of its metadata has {} numbers, {} were expected{}",
         checkpoint.path(), key, values.size(), count, positive ? "" : ", all of them possible");
  }
  return values;
}

void read_statistics(const WeightFiles& checkpoint, Config& c) {
  if (const std::string config = vae_config_json(checkpoint.path()); !config.empty()) {
    VaeStatistics s = read_own_statistics(config, c.z_dim);
    if (!s.empty()) {
      c.latent_mean = std::move(s.mean);
      c.latent_std = std::move(s.std);
      return;
    }
  }
  c.latent_mean = list_of(checkpoint, kLatentMeanKey, c.z_dim);
  c.latent_std = list_of(checkpoint, kLatentStdKey, c.z_dim);
  if (c.latent_mean.size() != c.latent_std.size()) {
    fail(ErrorCode::input, "{}: its metadata have only one of {} and {}", checkpoint.path(),
         kLatentMeanKey, kLatentStdKey);
  }
}

}  // namespace

std::optional<Recognised> recognise(const WeightFiles& checkpoint) {
  struct Marks {
    Dialect dialect;
    const char *sign, *sign22, *encoder, *decoder, *latent;
  };
  constexpr Marks kMarks[] = {
      {Dialect::official, "decoder.middle.0.residual.0.gamma",
       "decoder.upsamples.0.upsamples.0.residual.2.weight", "encoder.conv1.weight",
       "decoder.head.2.weight", "conv2.weight"},
      {Dialect::diffusers, "decoder.mid_block.resnets.0.norm1.gamma",
       "decoder.up_blocks.0.upsampler.resample.1.weight", "encoder.conv_in.weight",
       "decoder.conv_out.weight", "post_quant_conv.weight"}};
  for (const Marks& m : kMarks) {
    if (!checkpoint.find(m.sign)) continue;
    Recognised r = {.config = presets()[checkpoint.find(m.sign22) ? 1 : 0], .dialect = m.dialect};
    const auto size = [&](const char* name, int dim) -> std::int64_t {
      const Shape& s = checkpoint.get(name).entry->shape;
      if (s.rank() != 5) {
        fail(ErrorCode::input, "{}: {} is {}, a Wan VAE has 5 dimensions there", checkpoint.path(),
             name, s);
      }
      return s[dim];
    };
    r.config.encoder_dim = size(m.encoder, 0);
    r.config.decoder_dim = size(m.decoder, 1);
    r.config.z_dim = size(m.latent, 0);
    const bool released = std::ranges::find(presets(), r.config) != presets().end();
    if (!released) r.config.name += " of another size";
    validate(r.config);
    read_statistics(checkpoint, r.config);
    return r;
  }
  return std::nullopt;
}

}  // namespace ballast::wan_vae
