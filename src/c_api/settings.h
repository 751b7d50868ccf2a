#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "c_api/guard.h"
#include "core/bytes.h"

namespace ballast::c_api {

// Settings that callers write as JSON. All fail with ErrorCode::usage and name the key.

// An object; null or "" is an empty one.
Json parse_settings(const char* text);

// A key and what its value does.
struct Setting {
  std::string_view name;
  std::function<void(const Json&)> take;
};
// Every key of `json` is one of these; `what` names the object in messages.
void take_settings(const Json& json, std::string_view what, std::initializer_list<Setting> known);

// nullopt: null
std::optional<Bytes> size_of(const Json& value, std::string_view key);
std::optional<bool> switch_of(const Json& value, std::string_view key);
bool bool_of(const Json& value, std::string_view key);
double number_of(const Json& value, std::string_view key);
std::int64_t integer_of(const Json& value, std::string_view key);
std::string string_of(const Json& value, std::string_view key);

}  // namespace ballast::c_api
