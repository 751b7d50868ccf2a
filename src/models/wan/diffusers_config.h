#pragma once

#include <string>

#include "models/wan/config.h"

namespace ballast::wan {

// The config.json that diffusers' WanTransformer3DModel has for a model of these sizes.
std::string diffusers_config_json(const Config& c);

}  // namespace ballast::wan
