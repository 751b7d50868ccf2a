#pragma once

#include <string>
#include <string_view>

namespace ballast {

// Text as HTML or SVG content or attribute value: & < > " ' become entities, control characters
// other than tab and line break are dropped, bytes that are not UTF-8 become U+FFFD.
std::string html(std::string_view text);

}  // namespace ballast
