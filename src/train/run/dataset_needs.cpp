#include "train/run/dataset_needs.h"

#include <algorithm>
#include <cctype>

#include "io/hub_cache.h"
#include "models/wan_vae/latent_statistics.h"

namespace ballast::train {
namespace {

// Known by its folder's name alone: the tensors are Wan's.
bool is_skyreels(const ModelConfig& named) {
  std::string name = model_name_of(named.checkpoint);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name.find("skyreels") != std::string::npos;
}

}  // namespace

data::ModelNeeds needs_of(const ModelConfig& named, const wan::Config& c) {
  return {.latent_channels = c.out_dim,
          .conditioning_channels = c.conditioning(),
          .text_len = c.text_len,
          .text_dim = c.text_dim,
          .pixel_multiple = 2 * c.spatial_stride,
          .spatial_stride = c.spatial_stride,
          .fps = c.spatial_stride == 16 || is_skyreels(named) ? 24.0 : 16.0,
          .pair_statistics = {wan_vae::kWan22LatentMean, wan_vae::kWan22LatentStd}};
}

// The model's name in the path of its cache.
std::string cache_name_of(const ModelConfig& named, const wan::Config& c) {
  if (c.spatial_stride == 16) return "wan2.2_5b";
  if (is_skyreels(named)) return c.conditioning() > 0 ? "skyreels_v2_i2v" : "skyreels_v2";
  return c.conditioning() > 0 ? "wan2.2_i2v" : "wan";
}

}  // namespace ballast::train
