#pragma once

#include <string>
#include <string_view>

namespace ballast {

// SHA-256 in base64, as a Content-Security-Policy names a script.
std::string sha256_base64(std::string_view text);

}  // namespace ballast
