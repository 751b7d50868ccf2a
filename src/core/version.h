#pragma once

#include <string_view>

namespace ballast {

std::string_view version();  // "0.2.0"

}  // namespace ballast
