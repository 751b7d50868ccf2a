#include "app/plan_page_flags.h"

#include <algorithm>

#include "core/error.h"
#include "plan/display_names.h"

namespace ballast {
namespace {

constexpr std::size_t kMaxGrid = 64;  // plans

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool open = false;
  for (const char c : text) {
    if (c == ' ' || c == '\t') {
      open = false;
    } else {
      if (!open) words.emplace_back();
      open = true;
      words.back() += c;
    }
  }
  return words;
}

std::vector<std::string> values_of(std::string_view list) {
  std::vector<std::string> values;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    values.emplace_back(list.substr(at, end - at));
    at = end + 1;
  }
  return values;
}

bool is_flag(const std::string& word) { return word.starts_with("--"); }

// What the words do not name again stays.
std::vector<std::string> replaced(const std::vector<std::string>& arguments,
                                  const std::vector<std::string>& words) {
  const auto name = [](const std::string& flag) {
    std::string n = flag.substr(0, flag.find('='));
    std::ranges::replace(n, '_', '-');
    return n;
  };
  std::vector<std::string> all;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& a = arguments[i];
    const bool again = is_flag(a) && std::ranges::any_of(words, [&](const std::string& w) {
                         return is_flag(w) && name(w) == name(a);
                       });
    if (!again) {
      all.push_back(a);
    } else if (a.find('=') == a.npos && i + 1 < arguments.size() && !is_flag(arguments[i + 1])) {
      ++i;  // its value
    }
  }
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

// "gpu=8GB,24GB frames=25,81" -> "--gpu 8GB --frames 25", ...
std::vector<std::vector<std::string>> combinations(const std::string& grid) {
  std::vector<std::vector<std::string>> all = {{}};
  for (const std::string& word : words_of(grid)) {
    const std::size_t equals = word.find('=');
    if (equals == word.npos || equals == 0) {
      fail(ErrorCode::usage,
           fmt::format("--grid: expected NAME=VALUE,VALUE, found {}", printable(word)),
           {{"--grid 'gpu=8GB,24GB frames=25,81'", "plans four combinations"}});
    }
    std::vector<std::vector<std::string>> longer;
    for (const auto& before : all) {
      for (const std::string& value : values_of(word.substr(equals + 1))) {
        longer.push_back(before);
        longer.back().push_back("--" + word.substr(0, equals));
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
    if (all.size() > kMaxGrid) {
      fail(ErrorCode::usage,
           fmt::format("--grid has more than {} combinations: give fewer values", kMaxGrid));
    }
  }
  return all;
}

std::string joined_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : " ") + w;
  return text;
}

}  // namespace

std::vector<std::string> take_page_flags(const std::vector<std::string>& arguments,
                                         PlanPageFlags& to) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& a = arguments[i];
    const std::string name = a.substr(0, a.find('='));
    if (name != "--html" && name != "--versus" && name != "--grid") {
      rest.push_back(a);
      continue;
    }
    if (name.size() == a.size() && i + 1 == arguments.size()) {
      fail(ErrorCode::usage, fmt::format("{} needs a value", name));
    }
    const std::string value = name.size() < a.size() ? a.substr(name.size() + 1) : arguments[++i];
    if (name == "--html") {
      to.html = value;
    } else if (name == "--versus") {
      to.versus.push_back(value);
    } else {
      to.grid = value;
    }
  }
  return rest;
}

std::vector<OtherPlan> other_plans(const PlanPageFlags& flags,
                                   const std::vector<std::string>& arguments) {
  std::vector<OtherPlan> all;
  for (const std::string& line : flags.versus) {
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) fail(ErrorCode::usage, "--versus: expected flags or a configuration");
    all.push_back({line, is_flag(words[0]) ? replaced(arguments, words) : words});
  }
  if (flags.grid.empty()) return all;
  for (const auto& words : combinations(flags.grid)) {
    all.push_back({joined_words(words), replaced(arguments, words)});
  }
  return all;
}

std::string others_table(std::span<const MappedPlan> others) {
  if (others.empty()) return "";
  std::size_t width = 4;
  for (const MappedPlan& p : others) width = std::max(width, p.label.size());
  std::string text = fmt::format("\n{:<{}}  {:>10} {:>10} {:>10}  policy\n", "plan", width,
                                 others[0].shared_ram ? "compute" : "GPU", "RAM", "step");
  for (const MappedPlan& p : others) {
    const auto& [device, host, disk] = p.needed;
    text +=
        fmt::format("{:<{}}  {:>10} {:>10} {:>10}  {}\n", printable(p.label, 400), width,
                    to_string(device), to_string(p.shared_ram ? device + host : host),
                    fmt::format("{:.2f} s", p.step_seconds), p.fits() ? p.policy : "does not fit");
  }
  return text;
}

}  // namespace ballast
