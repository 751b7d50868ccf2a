#include "report/watch/request.h"

#include <algorithm>
#include <charconv>

namespace ballast {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::optional<std::string> unescaped(std::string_view text, bool query) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && query) {
      c = ' ';
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return std::nullopt;
    out += c;
  }
  return out;
}

std::string_view path_of(std::string_view target) { return target.substr(0, target.find('?')); }

std::optional<std::string> query_value(std::string_view target, std::string_view name) {
  const std::size_t begin = target.find('?');
  if (begin == target.npos) return std::nullopt;
  std::string_view rest = target.substr(begin + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    if (equals != pair.npos && pair.substr(0, equals) == name) {
      return unescaped(pair.substr(equals + 1), true);
    }
  }
  return std::nullopt;
}

std::string_view cookie_value(std::string_view cookie, std::string_view name) {
  while (!cookie.empty()) {
    std::string_view pair = cookie.substr(0, cookie.find(';'));
    cookie.remove_prefix(std::min(cookie.size(), pair.size() + 1));
    while (pair.starts_with(' ')) pair.remove_prefix(1);
    const std::size_t equals = pair.find('=');
    if (equals != pair.npos && pair.substr(0, equals) == name) return pair.substr(equals + 1);
  }
  return {};
}

std::string_view host_name(std::string_view host) {
  std::string_view name = host.substr(0, host.find(':')), port;
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    if (end == host.npos) return {};
    name = host.substr(1, end - 1);
    port = host.substr(end + 1);
  } else {
    port = host.substr(name.size());
  }
  if (!port.empty() && (port[0] != ':' || !decimal_number(port.substr(1)))) return {};
  return name;
}

std::optional<std::uint64_t> decimal_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned differ = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    differ = differ | static_cast<unsigned>(static_cast<unsigned char>(a[i] ^ b[i]));
  }
  return differ == 0;
}

std::optional<ByteRange> byte_range(std::string_view text, std::uint64_t size) {
  constexpr std::string_view kUnit = "bytes=";
  if (!text.starts_with(kUnit) || size == 0) return std::nullopt;
  text.remove_prefix(kUnit.size());
  const std::size_t dash = text.find('-');
  if (dash == text.npos) return std::nullopt;
  const std::string_view from = text.substr(0, dash), to = text.substr(dash + 1);
  const auto begin = decimal_number(from), end = decimal_number(to);
  if ((!from.empty() && !begin) || (!to.empty() && !end)) return std::nullopt;
  if (!begin) {  // the last so many
    if (!end || *end == 0) return std::nullopt;
    const std::uint64_t bytes = std::min(*end, size);
    return ByteRange{size - bytes, bytes};
  }
  if (*begin >= size || (end && *end < *begin)) return std::nullopt;
  const std::uint64_t last = end ? std::min(*end, size - 1) : size - 1;
  return ByteRange{*begin, last - *begin + 1};
}

}  // namespace ballast
