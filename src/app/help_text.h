#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ballast {

inline constexpr std::size_t kHelpColumns = 80;

// Lines that are too long are broken between words; what follows stands under the explanation of
// the option, or under the beginning of the line.
std::string fit_columns(std::string_view text, std::size_t columns = kHelpColumns);

// The pages of `train` and `plan` with the options of trainers: --help (train alone), --help-all,
// --help-diffusion-pipe, --help-musubi, --help-flow-matching, --help-t5. nullopt: none is asked
// for.
std::optional<std::string> training_help(std::string_view command,
                                         const std::vector<std::string>& arguments);
// The list of these pages.
std::string more_help(std::string_view command);

// docs/flags.md: the help pages of all commands and the options of all trainers. A test compares
// the committed page with this.
std::string flag_reference();

}  // namespace ballast
