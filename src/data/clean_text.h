#pragma once

#include <string>
#include <string_view>

namespace ballast::data {

// Prompts as Wan gives them to its tokenizer: what ftfy repairs (of wrongly decoded text what
// data/repair_decoding.h says), HTML references resolved twice, runs of white space one space, none
// at the ends. Malformed UTF-8 becomes U+FFFD.
std::string clean_text(std::string_view text);

}  // namespace ballast::data
