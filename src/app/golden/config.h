#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "app/golden/file.h"
#include "io/json_reader.h"

namespace ballast {

// Values of a config written by a stranger. Each reads the next value and fails with
// ErrorCode::input, naming the key and the bounds, when it has another kind or lies outside.
double read_number(JsonReader& json, double least, double most);
std::vector<std::int64_t> read_sizes(JsonReader& json, std::int64_t least, std::int64_t most);
std::vector<double> read_numbers(JsonReader& json, double least, double most);

// Lists in a golden config have at most this many members.
inline constexpr std::size_t kGoldenListMembers = 4096;

// Ends with ErrorCode::input: the config lacks `key`.
[[noreturn]] void fail_missing_key(const GoldenFile& file, std::string_view key);

}  // namespace ballast
