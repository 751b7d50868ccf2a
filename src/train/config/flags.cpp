#include "train/config/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <set>

#include "core/nearest_name.h"
#include "core/wrap_text.h"

namespace ballast::train {
namespace {

std::string normalised(std::string_view name) {
  std::string out(name.substr(name.starts_with("--") ? 2 : 0));
  std::ranges::replace(out, '-', '_');
  return out;
}

template <class T>
std::optional<T> parsed(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

std::string as_text(const TomlValue& value) {
  return value.kind == TomlValue::Kind::string ? value.string : describe(value);
}

void flatten(const TomlFile& file, const TomlValue& value, std::string_view name,
             std::vector<Setting>& out) {
  if (value.kind == TomlValue::Kind::table) {
    for (const auto& [key, member] : value.members) flatten(file, member, key, out);
    return;
  }
  Setting s{.name = normalised(name),
            .values = {},
            .where = fmt::format("{} line {}: {}", file.path(), value.line, printable(name, 60)),
            .code = ErrorCode::input};
  switch (value.kind) {
    case TomlValue::Kind::boolean:
      s.off = !value.boolean;
      break;
    case TomlValue::Kind::array:
      for (const TomlValue& item : value.items) {
        if (item.kind == TomlValue::Kind::array || item.kind == TomlValue::Kind::table) {
          s.fail_value("a list of plain values");
        }
        s.values.push_back(as_text(item));
      }
      break;
    default:
      s.values.push_back(as_text(value));
  }
  out.push_back(std::move(s));
}

// --fp16 False, as argparse has it.
bool says_no(const Setting& s) {
  return s.values.size() == 1 &&
         (s.values[0] == "False" || s.values[0] == "false" || s.values[0] == "0");
}

std::string_view operand(FlagTable::Takes takes) {
  constexpr std::string_view kOperands[] = {"", " VALUE", " [VALUE]", " VALUE..."};
  return kOperands[to_size(takes)];
}

}  // namespace

bool any_named(std::span<const Setting> settings, std::span<const std::string_view> names) {
  return std::ranges::any_of(
      settings, [&](const Setting& s) { return std::ranges::find(names, s.name) != names.end(); });
}

void Setting::fail_value(std::string_view expected) const {
  fail(code, "{}: expected {}, found {}", where, expected,
       values.empty() ? "nothing"
                      : '"' + printable(fmt::format("{}", fmt::join(values, " ")), 80) + '"');
}

void Setting::fail_with(std::string_view fault) const { fail(code, "{}: {}", where, fault); }

const std::string& Setting::text() const {
  if (values.size() != 1) fail_value("one value");
  return values.front();
}

std::int64_t Setting::integer(std::int64_t least, std::int64_t most) const {
  const auto value = parsed<std::int64_t>(text());
  if (!value) fail_value("an integer");
  if (*value < least) fail_value(fmt::format("at least {}", least));
  if (*value > most) fail_value(fmt::format("at most {}", most));
  return *value;
}

double Setting::number() const {
  const auto value = parsed<double>(text());
  if (!value || !std::isfinite(*value)) fail_value("a finite number");
  return *value;
}

CommandLine split_arguments(std::span<const std::string> arguments,
                            std::span<const std::string> switches) {
  CommandLine line;
  bool takes_value = false;
  const auto set_config = [&](const std::string& path) {
    if (!line.config.empty()) {
      fail(ErrorCode::usage, "two configurations, {} and {}: expected one", printable(line.config),
           printable(path));
    }
    line.config = path;
  };
  for (const std::string& word : arguments) {
    if (word.starts_with("--") && word.size() > 2) {
      const std::size_t equals = word.find('=');
      Setting s{.name = normalised(word.substr(0, equals)), .values = {}, .where = {}};
      s.where = "--" + printable(s.name, 60);
      if (equals != std::string::npos) s.values.push_back(word.substr(equals + 1));
      takes_value =
          equals == std::string::npos && std::ranges::find(switches, s.name) == switches.end();
      line.settings.push_back(std::move(s));
    } else if (takes_value) {
      line.settings.back().values.push_back(word);
    } else {
      set_config(word);
    }
  }
  return line;
}

std::vector<Setting> flattened(const TomlFile& file) {
  std::vector<Setting> out;
  const TomlTable root = file.root();
  for (const std::string_view key : root.keys()) flatten(file, *root.find(key), key, out);
  return out;
}

void FlagTable::add(std::string_view name, Takes takes, std::string_view help,
                    std::function<void(const Setting&)> set) {
  const auto twin =
      index_.insert(name, static_cast<std::uint32_t>(flags_.size()),
                    [&](std::uint32_t i) { return std::string_view(flags_[i].name); });
  check(!twin, "the flag --{} is in the table twice", name);
  flags_.push_back({std::string(name), takes, std::string(help), Use::honoured, std::move(set)});
}

void FlagTable::add(std::string_view name, bool& to, std::string_view help) {
  add(name, Takes::nothing, help, [&to](const Setting& s) { to = !s.off; });
}

void FlagTable::add(std::string_view name, Negated<bool> to, std::string_view help) {
  add(name, Takes::nothing, help, [to](const Setting& s) { to.of = s.off; });
}

void FlagTable::add(std::string_view name, Setting& to, std::string_view help, Takes takes) {
  add(name, takes, help, [&to](const Setting& s) { to = s; });
}

void FlagTable::add(std::string_view name, std::string& to, std::string_view help) {
  add(name, Takes::one, help, [&to](const Setting& s) { to = s.text(); });
}

void FlagTable::add(std::string_view name, std::vector<std::string>& to, std::string_view help) {
  add(name, Takes::many, help, [&to](const Setting& s) { to = s.values; });
}

void FlagTable::add(std::string_view name, std::optional<double>& to, std::string_view help) {
  add(name, Takes::one, help, [&to](const Setting& s) {
    const double value = s.number();
    if (value <= 0 || value >= 1) s.fail_value("a number between 0 and 1");
    to = value;
  });
}

void FlagTable::add(std::string_view name, std::optional<std::string>& to, std::string_view help) {
  add(name, Takes::maybe_one, help, [&to](const Setting& s) {
    if (!s.off) to = s.values.empty() ? "" : s.values.front();
  });
}

void FlagTable::add(std::string_view name, double& to, std::string_view help, double least) {
  add(name, Takes::one, help, [&to, least](const Setting& s) {
    to = s.number();
    if (to < least) s.fail_value(fmt::format("at least {}", least));
  });
}

void FlagTable::add(MachineOptions& to, std::span<const std::string_view> names) {
  MachineOptions::fields(to, [&](std::string_view name, auto&& field, std::string_view help) {
    if (std::ranges::find(names, name) == names.end()) return;
    using Field = std::remove_cvref_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, bool> || std::is_same_v<Field, Negated<bool>>) {
      add(name, field, help);
    } else if constexpr (std::is_same_v<Field, int>) {
      add(name, field, help, 0, INT_MAX);
    } else {
      add(name, Takes::one, help, [set = setter_of(field)](const Setting& s) {
        if (const auto fault = set(s.text())) s.fail_with(*fault);
      });
      flags_.back().words = option_words(field);
    }
  });
}

void FlagTable::add_later(const FlagTable& flags, std::vector<Setting>& to) {
  for (const Flag& f : flags.flags_) {
    add(f.name, f.takes, f.help, [&to](const Setting& s) { to.push_back(s); });
    flags_.back().words = f.words;
  }
}

void FlagTable::ignore(std::string_view name, Takes takes, std::string_view reason) {
  add(name, takes, reason, [notes = notes_, reason = std::string(reason)](const Setting& s) {
    // where, not the value: it may be a secret.
    if (!s.off) notes->push_back(fmt::format("{}: {}", s.where, reason));
  });
  flags_.back().use = Use::ignored;
}

void FlagTable::ignore(std::string_view name, Takes takes,
                       std::function<std::string(const Setting&)> note) {
  add(name, takes, "", [notes = notes_, note = std::move(note)](const Setting& s) {
    std::string text = s.off ? "" : note(s);
    if (!text.empty()) notes->push_back(std::move(text));
  });
  flags_.back().use = Use::ignored;
}

void FlagTable::refuse(std::string_view name, Takes takes, std::string_view reason) {
  add(name, takes, reason, [takes, reason = std::string(reason)](const Setting& s) {
    const bool declined = s.off || (takes == Takes::maybe_one && says_no(s));
    if (!declined) fail(s.code, fmt::format("{}: {}", s.where, reason));
  });
  flags_.back().use = Use::rejected;
}

const FlagTable::Flag* FlagTable::find(std::string_view name) const {
  const auto at =
      index_.find(name, [&](std::uint32_t i) { return std::string_view(flags_[i].name); });
  return at ? &flags_[*at] : nullptr;
}

void FlagTable::read(std::span<const Setting> settings) const {
  for (const Setting& s : settings) {
    if (find(s.name) != nullptr) continue;
    std::vector<std::string_view> names;
    for (const Flag& f : flags_) names.push_back(f.name);
    fail(s.code,
         fmt::format("{}: unknown {}{}", s.where, s.code == ErrorCode::input ? "key" : "flag",
                     suggestion(s.name, names)));
  }
  std::set<std::string_view> later;
  std::vector<const Setting*> winners;
  for (auto s = settings.rbegin(); s != settings.rend(); ++s) {
    if (later.insert(s->name).second) winners.push_back(&*s);
  }
  for (auto at = winners.rbegin(); at != winners.rend(); ++at) {
    const Setting& s = **at;
    const Flag& flag = *find(s.name);
    const bool too_many = (flag.takes == Takes::nothing && !s.values.empty()) ||
                          (flag.takes == Takes::maybe_one && s.values.size() > 1);
    if (too_many) s.fail_value(flag.takes == Takes::nothing ? "no value" : "at most one value");
    if (s.off && flag.takes != Takes::nothing && flag.takes != Takes::maybe_one) {
      s.fail_value("a value, not false");
    }
    flag.set(s);
  }
}

std::vector<std::string> FlagTable::switches() const {
  std::vector<std::string> names;
  for (const Flag& f : flags_) {
    if (f.takes == Takes::nothing) names.push_back(f.name);
  }
  return names;
}

std::vector<FlagInfo> FlagTable::honoured() const {
  std::vector<FlagInfo> all;
  for (const Flag& f : flags_) {
    if (f.use != Use::honoured) continue;
    all.push_back({f.name, f.takes != Takes::nothing, f.help, f.words});
  }
  return all;
}

std::string FlagTable::help() const {
  std::string out;
  std::vector<std::string> ignored, rejected;
  for (const Flag& f : flags_) {
    if (f.use == Use::honoured) {
      const std::string name = fmt::format("--{}{}", f.name, operand(f.takes));
      out += name.size() > 30 ? fmt::format("  {}\n{:34}{}\n", name, "", f.help)
                              : fmt::format("  {:<30}  {}\n", name, f.help);
    } else {
      (f.use == Use::ignored ? ignored : rejected).push_back("--" + f.name);
    }
  }
  constexpr std::size_t kColumns = 80;
  const auto list = [&](std::string_view title, const std::vector<std::string>& names) {
    if (names.empty()) return;
    out += wrapped(title, fmt::format("{}", fmt::join(names, " ")), kColumns, 4) + "\n";
  };
  list("  ignored: ", ignored);
  list("  rejected: ", rejected);
  return out;
}

void ignore_launcher_flags(FlagTable& table) {
  for (const auto name : {"num_gpus", "nproc_per_node", "num_processes", "num_machines"}) {
    table.ignore(name, FlagTable::Takes::one, [](const Setting& s) {
      const bool several = s.values.size() == 1 && s.text() != "1" && s.text() != "0";
      return several ? fmt::format("{} {}: one GPU is used; several are not supported yet", s.where,
                                   printable(s.text(), 20))
                     : fmt::format("{}: {}", s.where, kLauncherOption);
    });
  }
}

}  // namespace ballast::train
