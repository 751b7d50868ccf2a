#pragma once

#include <optional>
#include <string_view>

#include "core/dtype.h"
#include "io/hub_cache.h"
#include "models/wan/config.h"

namespace ballast::wan {

// A model as its publishers have it on the hub: what a plan needs before anything is downloaded.
struct Published {
  HubId id;
  Config config;
  DType stored = DType::f32;  // of its files
  bool diffusers = false;     // in diffusers' folders
};

// By an id of the hub (any revision, also a part of it: ORG/NAME/low_noise_model) or a preset's
// name. nullopt: none of ours. Derivatives that Ballast does not run fail with ErrorCode::input.
std::optional<Published> find_published(std::string_view named);

}  // namespace ballast::wan
