#pragma once

#include <span>
#include <string>

#include "io/json_reader.h"

namespace ballast {

struct JsonMember {
  std::string key;
  std::string value;  // as it is written in JSON: "true", "\"float32\"", "[1, 2]"
};

// The text of an object in which these members have these values. Keys that it has keep their
// place, the others come last; everything else stays as it is written. Fails as JsonReader does
// where the text is no object.
std::string with_members(const JsonSource& source, std::span<const JsonMember> members);

}  // namespace ballast
