#include "c_api/settings.h"

#include <algorithm>
#include <vector>

#include "core/nearest_name.h"

namespace ballast::c_api {
namespace {

[[noreturn]] void fail_value(std::string_view key, const Json& value, std::string_view expected) {
  fail(ErrorCode::usage,
       fmt::format("{}: expected {}, found {}", key, expected, printable(text_of(value))));
}

}  // namespace

Json parse_settings(const char* text) {
  if (text == nullptr || *text == '\0') return Json::object();
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) fail(ErrorCode::usage, "the settings are no JSON");
  if (!json.is_object()) fail(ErrorCode::usage, "the settings are no JSON object");
  return json;
}

void take_settings(const Json& json, std::string_view what, std::initializer_list<Setting> known) {
  if (!json.is_object()) fail(ErrorCode::usage, fmt::format("{}: expected an object", what));
  for (const auto& [key, value] : json.items()) {
    const auto found = std::ranges::find(known, std::string_view(key), &Setting::name);
    if (found != known.end()) {
      found->take(value);
      continue;
    }
    std::vector<std::string_view> names;
    for (const Setting& s : known) names.push_back(s.name);
    fail(ErrorCode::usage,
         fmt::format("{} has no {}{}", what, printable(key), suggestion(key, names)));
  }
}

std::optional<Bytes> size_of(const Json& value, std::string_view key) {
  if (value.is_null()) return std::nullopt;
  if (value.is_number_unsigned()) return Bytes{value.get<std::uint64_t>()};
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (const auto bytes = parse_bytes(text); bytes && !missing_unit(text)) return bytes;
  }
  fail_value(key, value, "bytes, or a size such as \"24GB\"");
}

std::optional<bool> switch_of(const Json& value, std::string_view key) {
  if (value.is_null()) return std::nullopt;
  return bool_of(value, key);
}

bool bool_of(const Json& value, std::string_view key) {
  if (!value.is_boolean()) fail_value(key, value, "true or false");
  return value.get<bool>();
}

double number_of(const Json& value, std::string_view key) {
  if (!value.is_number()) fail_value(key, value, "a number");
  return value.get<double>();
}

std::int64_t integer_of(const Json& value, std::string_view key) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > (std::uint64_t{1} << 62))) {
    fail_value(key, value, "a whole number");
  }
  return value.get<std::int64_t>();
}

std::string string_of(const Json& value, std::string_view key) {
  if (!value.is_string()) fail_value(key, value, "a text");
  return value.get<std::string>();
}

}  // namespace ballast::c_api
