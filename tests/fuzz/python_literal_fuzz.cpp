// Python literals in key=value flags. Any text is one or is none; nothing is an error.

#include "fuzz.h"
#include "train/config/python_literal.h"

namespace ballast::fuzz {
namespace {

int depth_of(const TomlValue& value) {
  int deepest = 0;
  for (const TomlValue& item : value.items) deepest = std::max(deepest, depth_of(item));
  return deepest + 1;
}

}  // namespace

void one_input(Input input) {
  const auto literal = train::parse_python_literal(input.rest());
  if (!literal) return;
  if (const auto* value = std::get_if<TomlValue>(&*literal)) require(depth_of(*value) <= 10);
}

}  // namespace ballast::fuzz
