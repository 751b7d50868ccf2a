#pragma once

#include <string>
#include <string_view>

namespace ballast::data {

// What Python's html.unescape() does: numeric references (Windows-1252 for U+0080..U+009F, what is
// no character becomes U+FFFD or nothing), all HTML5 names, and the old names also without their
// semicolon, the longest that fits.
std::string unescape_html(std::string_view text);

// What ftfy does: only references that end in a semicolon, and names that are written in capitals
// although HTML has them in small letters ("&EACUTE;").
std::string unescape_html_strictly(std::string_view text);

// "name=value", sorted, a space behind each; the names without semicolon, sorted; names in small
// letters whose value has capitals, with these.
extern const std::string_view kEntityNames, kBareEntityNames, kUpperEntities;

}  // namespace ballast::data
