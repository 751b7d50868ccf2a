#include "report/service_key.h"

#include <algorithm>
#include <cstdlib>

#include "core/path_kind.h"
#include "memory/text_file.h"

namespace ballast {
namespace {

constexpr const char* kEnvFile = ".env";
constexpr std::uint64_t kMaxEnvFile = 1 << 20;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// Without quotes, and without a comment behind it.
std::string_view plain_value(std::string_view text) {
  text = trimmed(text);
  if (!text.empty() && (text[0] == '"' || text[0] == '\'')) {
    const std::size_t end = text.find(text[0], 1);
    return text.substr(1, end == std::string_view::npos ? end : end - 1);
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '#' && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t')) {
      return trimmed(text.substr(0, i));
    }
  }
  return text;
}

}  // namespace

std::optional<std::string> value_in_env_text(std::string_view text, std::string_view name) {
  std::optional<std::string> value;
  while (!text.empty()) {
    std::string_view line = trimmed(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
    if (line.starts_with("export ")) line = trimmed(line.substr(7));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos || trimmed(line.substr(0, equals)) != name) continue;
    value = plain_value(line.substr(equals + 1));
  }
  return value;
}

std::optional<ServiceKey> find_service_key(const std::string& name) {
  if (const char* const value = std::getenv(name.c_str()); value != nullptr && *value != '\0') {
    return ServiceKey{name, value, "the environment"};
  }
  if (!is_file(kEnvFile)) return std::nullopt;
  const auto value = value_in_env_text(read_text_file(kEnvFile, kMaxEnvFile, "an .env file"), name);
  if (!value || value->empty()) return std::nullopt;
  return ServiceKey{name, *value, kEnvFile};
}

}  // namespace ballast
