#pragma once

#include "io/wan_latent_statistics.h"

namespace ballast::data {

using ballast::kWan22LatentMean;
using ballast::kWan22LatentStd;

}  // namespace ballast::data
