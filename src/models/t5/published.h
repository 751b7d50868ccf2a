#pragma once

#include <optional>
#include <string_view>

#include "core/dtype.h"
#include "io/hub_cache.h"
#include "models/t5/config.h"

namespace ballast::t5 {

// An encoder-decoder as its publishers have it on the hub: what a plan needs before anything is
// downloaded.
struct Published {
  HubId id;
  Config config;
  DType stored = DType::f32;  // of its files
};

// google/flan-t5-*, google/t5-v1_1-*, t5-* and google-t5/t5-*, any revision; or a preset's name.
std::optional<Published> find_published(std::string_view named);

}  // namespace ballast::t5
