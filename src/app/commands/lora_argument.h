#pragma once

#include <string>
#include <utility>

namespace ballast {

// "style.safetensors:0.7"; without a number behind the last colon all of it is the path. Fails with
// ErrorCode::usage when the strength is not finite.
std::pair<std::string, double> path_and_strength(const std::string& text);

}  // namespace ballast
