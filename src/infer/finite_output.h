#pragma once

#include <span>
#include <string_view>

namespace ballast::infer {

// Fails with ErrorCode::input where one of the numbers that a model gave is NaN or infinite: a clip
// or a text made of them would be garbage. what: "the latent after step 3 of 20".
void require_finite(std::span<const float> values, std::string_view what);

}  // namespace ballast::infer
