#pragma once

#include <string>
#include <string_view>

namespace ballast {

// Appends `text`, which must be UTF-8, in quotes; only what must be escaped is.
void append_json_string(std::string& out, std::string_view text);

}  // namespace ballast
