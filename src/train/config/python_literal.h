#pragma once

#include <optional>
#include <string_view>
#include <variant>

#include "io/toml_table.h"

namespace ballast::train {

struct PythonNone {};
using PythonLiteral = std::variant<PythonNone, TomlValue>;

// The literals that people write into key=value flags: 0.9, True, None, 'text', r'.*q', [..],
// (0.9, 0.99) with or without parentheses; tuples and lists are arrays, at most 8 deep. nullopt:
// not one of these.
std::optional<PythonLiteral> parse_python_literal(std::string_view text);

}  // namespace ballast::train
