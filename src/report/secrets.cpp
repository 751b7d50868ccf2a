#include "report/secrets.h"

#include <algorithm>
#include <cctype>

namespace ballast {
namespace {

bool in_bare_key(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
}

std::size_t skip_blanks(std::string_view text, std::size_t at) {
  while (at < text.size() && (text[at] == ' ' || text[at] == '\t')) ++at;
  return at;
}

// Behind the string that begins at `at`; the end of the text where it is not closed.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string_view rest = text.substr(at);
  const bool long_one = rest.starts_with(std::string(3, quote));
  for (std::size_t i = at + (long_one ? 3 : 1); i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (!long_one) return i + 1;
      // A quote or two may stand in front of the closing three.
      std::size_t run = 1;
      while (i + run < text.size() && text[i + run] == quote) ++run;
      if (run >= 3) return i + run;
      i += run - 1;
    } else if (!long_one && text[i] == '\n') {
      return i;
    }
  }
  return text.size();
}

// Behind the value that begins at `at`.
std::size_t end_of_value(std::string_view text, std::size_t at) {
  int depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = end_of_string(text, at);
      if (depth == 0) return at;
      continue;
    }
    if (c == '#' && depth > 0) {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') {
      if (depth == 0) return at;
      if (--depth == 0) return at + 1;
    }
    if (depth == 0 && (c == '\n' || c == '\r' || c == ',' || c == '#')) break;
    ++at;
  }
  while (at > 0 && (text[at - 1] == ' ' || text[at - 1] == '\t')) --at;
  return at;
}

// Behind the word that begins at `at`: an address or a key.
std::size_t end_of_word(std::string_view text, std::size_t at) {
  return std::min(text.find_first_of(" \t\r\n'\"`,;<>)]}", at), text.size());
}

// Addresses that let anybody in who has them: of webhooks, or with a password in front of the host.
bool is_secret_address(std::string_view word) {
  const std::size_t host = word.find("://");
  if (host == std::string_view::npos) return false;
  const std::string_view rest = word.substr(host + 3);
  const std::string_view authority = rest.substr(0, rest.find('/'));
  const std::size_t at = authority.rfind('@');
  const bool password = at != std::string_view::npos && authority.find(':') < at;
  return password || authority.starts_with("hooks.") || rest.find("/webhooks/") != rest.npos;
}

// As Hugging Face and OpenAI write them: hf_..., sk-...
bool is_secret_key(std::string_view word) {
  constexpr std::size_t kShortest = 20;
  return word.size() >= kShortest && (word.starts_with("hf_") || word.starts_with("sk-")) &&
         std::ranges::all_of(word, in_bare_key);
}

// Whatever the name in front of them.
std::string hide_secret_words(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const bool begins = in_bare_key(text[at]) && (at == 0 || !in_bare_key(text[at - 1]));
    const std::size_t end = begins ? end_of_word(text, at) : at + 1;
    const std::string_view word = text.substr(at, end - at);
    if (begins && (is_secret_address(word) || is_secret_key(word))) {
      out += kHidden;
      at = end;
    } else {
      out += text[at++];
    }
  }
  return out;
}

bool needs_quotes(std::string_view word) {
  return word.empty() || std::ranges::any_of(word, [](char c) {
           return !in_bare_key(c) && std::string_view("./,:=+@%").find(c) == std::string_view::npos;
         });
}

std::string shell_word(std::string_view word) {
  if (!needs_quotes(word)) return std::string(word);
  std::string text = "'";
  for (const char c : word) {
    if (c == '\'') {
      text += "'\\''";
    } else {
      text += c;
    }
  }
  return text + "'";
}

}  // namespace

bool is_secret_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  constexpr std::string_view kWords[] = {"apikey",     "token",   "password",   "passwd",
                                         "secret",     "webhook", "credential", "accesskey",
                                         "privatekey", "phone"};
  return std::ranges::any_of(
      kWords, [&](std::string_view w) { return plain.find(w) != std::string::npos; });
}

std::string hide_secrets(std::string_view toml) {
  std::string out;
  std::size_t copied = 0;
  for (std::size_t at = 0; at < toml.size();) {
    if (!in_bare_key(toml[at])) {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    while (at < toml.size() && in_bare_key(toml[at])) ++at;
    if (!is_secret_name(toml.substr(begin, at - begin))) continue;
    std::size_t next = at;
    if (next < toml.size() && (toml[next] == '"' || toml[next] == '\'')) ++next;  // "key" = value
    next = skip_blanks(toml, next);
    if (next >= toml.size() || (toml[next] != '=' && toml[next] != ':')) continue;
    next = skip_blanks(toml, next + 1);
    const std::size_t end = end_of_value(toml, next);
    const std::string_view value = toml.substr(next, end - next);
    at = std::max(at, end);
    if (value == "true" || value == "false" || value.empty()) continue;
    out += toml.substr(copied, next - copied);
    out += '"';
    out += kHidden;
    out += '"';
    copied = end;
  }
  out += toml.substr(copied);
  return hide_secret_words(out);
}

std::string shown_command(std::string_view program, std::span<const std::string> arguments) {
  std::string text(program);
  bool hide_next = false;
  for (const std::string& argument : arguments) {
    const bool flag = argument.starts_with("--");
    std::string shown = hide_secret_words(argument);
    if (hide_next && !flag) shown = kHidden;
    hide_next = false;
    if (flag && is_secret_name(argument.substr(0, argument.find('=')))) {
      const std::size_t value = argument.find('=');
      if (value == std::string::npos) {
        hide_next = true;
      } else {
        shown = argument.substr(0, value + 1) + std::string(kHidden);
      }
    }
    text += " " + shell_word(shown);
  }
  return text;
}

}  // namespace ballast
