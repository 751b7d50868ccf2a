#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ballast {

// What a request says, as it came: nothing in it is trusted.
struct WatchRequest {
  std::string_view method = {}, target = {};  // "/previews/a.mp4?name=run"
  std::string_view host = {}, cookie = {}, authorization = {}, range = {}, last_event_id = {};
};

// "%2e" and, in a query, "+" undone; nullopt where that is broken or gives a control byte.
std::optional<std::string> unescaped(std::string_view text, bool query);
std::string_view path_of(std::string_view target);
// The value of a name in the query; nullopt: it is not there, or broken.
std::optional<std::string> query_value(std::string_view target, std::string_view name);
// "a" of "x=1; NAME=a".
std::string_view cookie_value(std::string_view cookie, std::string_view name);
// "localhost" of "localhost:8080", "::1" of "[::1]:8080"; "" where it is no host.
std::string_view host_name(std::string_view host);
std::optional<std::uint64_t> decimal_number(std::string_view text);
// In a time that tells nothing of what they have in common.
bool same_secret(std::string_view a, std::string_view b);

struct ByteRange {
  std::uint64_t begin = 0, bytes = 0;
};
// "bytes=0-99" of a file of `size`; nullopt: more than one range, or none that the file has.
std::optional<ByteRange> byte_range(std::string_view text, std::uint64_t size);

}  // namespace ballast
