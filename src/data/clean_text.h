#pragma once

#include <string>
#include <string_view>

namespace ballast::data {

// Prompts as Wan gives them to its tokenizer: what ftfy repairs (all but wrongly decoded text),
// HTML references resolved twice, runs of white space one space, none at the ends. Malformed UTF-8
// becomes U+FFFD.
std::string clean_text(std::string_view text);

// Whether a part of the text is UTF-8 that was read as Windows-1252 or Latin-1 ("Ã©"): the one
// thing ftfy would repair and clean_text() leaves alone, so the user should hear of it.
bool looks_misdecoded(std::string_view text);

}  // namespace ballast::data
