#pragma once

#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <string>
#include <vector>

// Does what a line of advice says, as its reader would: types its flags, writes its keys.
namespace ballast::support {

// "--gpu 3MB --ram 4MB" instead of what the words say of these flags, else behind them.
inline std::vector<std::string> with_flags(std::vector<std::string> words,
                                           const std::string& text) {
  std::istringstream in(text);
  const std::vector<std::string> added{std::istream_iterator<std::string>(in), {}};
  const auto plain = [](std::string flag) {
    std::ranges::replace(flag, '-', '_');
    return flag;
  };
  for (const std::string& flag : added) {
    if (!flag.starts_with("--")) continue;
    for (std::size_t i = 0; i < words.size();) {
      if (!words[i].starts_with("--") || plain(words[i]) != plain(flag)) {
        ++i;
        continue;
      }
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
      while (i < words.size() && !words[i].starts_with("--")) {
        words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  words.insert(words.end(), added.begin(), added.end());
  return words;
}

// "rank = 4", "[adapter] type = 'lora', rank = 4": in the text of a TOML file.
inline std::string with_keys(const std::string& toml, const std::string& text) {
  std::smatch parts;
  if (!std::regex_match(text, parts, std::regex(R"((?:\[(\w+)\] )?(\w+ = .*))"))) {
    ADD_FAILURE() << text << ": neither keys nor flags";
    return toml;
  }
  const std::string section = parts[1];
  std::string list = parts[2], out = toml;
  if (!section.empty() && out.find("[" + section + "]\n") == out.npos) {
    out += "\n[" + section + "]\n";
  }
  std::size_t from = 0;
  if (!section.empty()) from = out.find("[" + section + "]\n") + section.size() + 3;
  std::smatch key;
  while (std::regex_match(list, key, std::regex(R"((\w+) = (.*?)(?:, (\w+ = .*))?)"))) {
    const std::size_t end = std::min(out.find("\n[", from == 0 ? 0 : from - 1), out.size());
    const std::string name = key[1], line = name + " = " + key[2].str();
    std::string part = out.substr(from, end - from);
    const std::regex old("(^|\n)" + name + " = [^\n]*");
    if (std::regex_search(part, old)) {
      part = std::regex_replace(part, old, "$1" + line);
    } else {
      part = line + "\n" + part;
    }
    out = out.substr(0, from) + part + out.substr(end);
    const std::string rest = key[3];
    list = rest;
  }
  return out;
}

inline std::string without_section(const std::string& toml, const std::string& section) {
  const std::size_t from = toml.find("[" + section + "]");
  if (from == toml.npos) return toml;
  const std::size_t end = std::min(toml.find("\n[", from), toml.size());
  return toml.substr(0, from) + toml.substr(end);
}

}  // namespace ballast::support
