#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ballast {

// A key of a web service that a training job is given outside of its configuration. The value is a
// secret: it is in no message and no record.
struct ServiceKey {
  std::string name, value;
  std::string_view from;  // "the environment", ".env"
};

// By the name of an environment variable. Without one, the file .env of the working directory is
// asked for that name; nothing else of the file is used. nullopt: not set, or empty.
std::optional<ServiceKey> find_service_key(const std::string& name);

// The value of NAME=value, `export NAME="value"` and the like in a text of such lines; the last one
// counts.
std::optional<std::string> value_in_env_text(std::string_view text, std::string_view name);

}  // namespace ballast
