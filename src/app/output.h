#pragma once

#include <string_view>

namespace ballast {

// Writes results to stdout, at once. When the reader has gone (ballast inspect x | head, a terminal
// that was closed) the rest is dropped without a word; other failures end the run with
// ErrorCode::io.
void print(std::string_view text);

}  // namespace ballast
