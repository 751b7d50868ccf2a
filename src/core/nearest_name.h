#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ballast {

// The name a mistyped one was probably meant to be: the fewest insertions, deletions, replacements
// and swaps of neighbours, at most a third of its length (and at least one); nullopt when none is
// that near.
std::optional<std::string_view> nearest_name(std::string_view typed,
                                             std::span<const std::string_view> known);

// ", did you mean NAME?" or nothing.
std::string suggestion(std::string_view typed, std::span<const std::string_view> known);

// "a, b, c"
std::string joined(std::span<const std::string_view> names);

}  // namespace ballast
