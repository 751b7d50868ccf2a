#include "app/golden/config.h"

#include <fmt/format.h>

#include "core/error.h"

namespace ballast {
namespace {

template <class Read>
auto read_list(JsonReader& json, Read&& read) {
  std::vector<decltype(read())> values;
  json.open_array();
  while (json.next_element()) {
    if (values.size() == kGoldenListMembers) {
      json.fail_here(fmt::format("more than {} members", kGoldenListMembers));
    }
    values.push_back(read());
  }
  return values;
}

}  // namespace

double read_number(JsonReader& json, double least, double most) {
  const double value = json.number();
  if (!(value >= least && value <= most)) {
    json.fail_value(fmt::format("{} is not between {} and {}", value, least, most));
  }
  return value;
}

std::vector<std::int64_t> read_sizes(JsonReader& json, std::int64_t least, std::int64_t most) {
  return read_list(json, [&] { return json.i64(least, most); });
}

std::vector<double> read_numbers(JsonReader& json, double least, double most) {
  return read_list(json, [&] { return read_number(json, least, most); });
}

void fail_missing_key(const GoldenFile& file, std::string_view key) {
  fail(ErrorCode::input, "{}: golden.config: there is no \"{}\" in it", file.path(), key);
}

}  // namespace ballast
