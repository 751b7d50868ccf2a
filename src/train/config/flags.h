#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "io/name_index.h"
#include "io/toml_table.h"
#include "nn/machine_options.h"
#include "nn/option_words.h"

namespace ballast::train {

// One setting of a run: a flag of the command line or a key of a file with the same names.
struct Setting {
  std::string name;  // without dashes in front, underscores inside
  std::vector<std::string> values;
  std::string where;                  // "--network_dim", "run.toml line 4: network_dim"
  ErrorCode code = ErrorCode::usage;  // of what is wrong with it; input for a file
  bool off = false;                   // a switch written as false in a file

  [[noreturn]] void fail_value(std::string_view expected) const;
  [[noreturn]] void fail_with(std::string_view fault) const;  // the whole of what is wrong
  const std::string& text() const;                            // of exactly one value
  std::int64_t integer(std::int64_t least = INT64_MIN, std::int64_t most = INT64_MAX) const;
  double number() const;  // finite
};

// Parsers of values, for FlagTable::add. `expected` says what they accept.
template <class Accepted>
auto number_where(Accepted accepted, std::string_view expected) {
  return [accepted, expected](const Setting& s) {
    const double value = s.number();
    if (!accepted(value)) s.fail_value(expected);
    return value;
  };
}
inline auto integer_in(std::int64_t least, std::int64_t most, std::string_view expected) {
  return [=](const Setting& s) {
    const std::int64_t value = s.integer();
    if (value < least || value > most) s.fail_value(expected);
    return value;
  };
}

struct CommandLine {
  std::string config;  // the one argument that is no flag and no flag's value; "": none
  std::vector<Setting> settings;
};

// --name value..., --name=value; dashes and underscores are alike. `switches` are the flags without
// a value: what follows one of them is the config.
CommandLine split_arguments(std::span<const std::string> arguments,
                            std::span<const std::string> switches);

// Whether any of them has one of the names.
bool any_named(std::span<const Setting> settings, std::span<const std::string_view> names);

// All keys of a file as settings; names of tables are left out, as musubi-tuner does.
std::vector<Setting> flattened(const TomlFile& file);

// A flag as help pages and completions show it.
struct FlagInfo {
  std::string name;  // as in Setting
  bool takes_value = true;
  std::string help;
  std::vector<std::string> words = {};  // that it takes; empty: others, too
};

// The flags of one dialect: what each does, or why it does nothing. Reads settings and describes
// itself; a flag that is not in the table fails with the nearest name.
class FlagTable {
 public:
  enum class Takes : std::uint8_t { nothing, one, maybe_one, many };

  explicit FlagTable(std::vector<std::string>* notes) : notes_(notes) {}

  void add(std::string_view name, bool& to, std::string_view help);
  void add(std::string_view name, Negated<bool> to, std::string_view help);
  void add(std::string_view name, std::string& to, std::string_view help);
  void add(std::string_view name, std::vector<std::string>& to, std::string_view help);
  template <class To>
  requires std::integral<To> || std::same_as<To, std::optional<std::int64_t>>
  void add(std::string_view name, To& to, std::string_view help, std::int64_t least = 0,
           std::int64_t most = INT64_MAX) {
    using Value = std::conditional_t<std::integral<To>, To, std::int64_t>;
    add(name, Takes::one, help,
        [&to, least, most](const Setting& s) { to = static_cast<Value>(s.integer(least, most)); });
  }
  void add(std::string_view name, double& to, std::string_view help, double least = 0);
  void add(std::string_view name, std::optional<double>& to,
           std::string_view help);  // between 0 and 1
  // --name alone is "".
  void add(std::string_view name, std::optional<std::string>& to, std::string_view help);
  // What is given, to be looked at when all flags are known; its name is empty where nothing is.
  void add(std::string_view name, Setting& to, std::string_view help, Takes takes = Takes::one);
  // What `parse` makes of what is given.
  template <class To, class Parse>
  requires(std::invocable<const Parse&, const Setting&> &&
           !std::same_as<std::remove_const_t<To>, Takes>) void add(std::string_view name, To& to,
                                                                   std::string_view help,
                                                                   Parse parse,
                                                                   Takes takes = Takes::one) {
    add(name, takes, help, [&to, parse](const Setting& s) { to = std::invoke(parse, s); });
  }
  template <class To, class T, std::size_t N>
  void add(std::string_view name, To& to, std::string_view help,
           const std::array<EnumName<T>, N>& words) {
    add(name, Takes::one, help, [&to, words](const Setting& s) {
      const auto value = parse_enum(words, s.text());
      if (!value) s.fail_value(one_of(words, s.text()));
      to = *value;
    });
    flags_.back().words = enum_names(words);
  }
  void add(std::string_view name, Takes takes, std::string_view help,
           std::function<void(const Setting&)> set);
  // The fields of MachineOptions with these names.
  void add(MachineOptions& to, std::span<const std::string_view> names);
  // All that Options::fields visits.
  template <class Options>
  void add_fields(Options& to) {
    Options::fields(to, [this](std::string_view name, auto&& field, std::string_view help,
                               const auto&... limits) { add(name, field, help, limits...); });
  }
  // The same flags, for later: what is given to them is collected.
  void add_later(const FlagTable& flags, std::vector<Setting>& to);
  // Accepted, with the note "--sdpa: <reason>".
  void ignore(std::string_view name, Takes takes, std::string_view reason);
  void ignore(Takes takes, std::string_view reason, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) ignore(name, takes, reason);
  }
  // The same where the reason depends on the value; note: the whole note, "": none.
  void ignore(std::string_view name, Takes takes, std::function<std::string(const Setting&)> note);
  // Known, but it would change the result in a way that is not offered.
  void refuse(std::string_view name, Takes takes, std::string_view reason);

  // Of two settings of one name the later wins.
  void read(std::span<const Setting> settings) const;
  std::vector<std::string> switches() const;
  bool knows(std::string_view name) const { return find(name) != nullptr; }
  // One line per flag, then the names of those that are ignored and of those that are rejected.
  std::string help() const;
  // Those that are neither.
  std::vector<FlagInfo> honoured() const;

 private:
  enum class Use : std::uint8_t { honoured, ignored, rejected };
  struct Flag {
    std::string name;
    Takes takes;
    std::string help;
    Use use;
    std::function<void(const Setting&)> set;
    std::vector<std::string> words = {};  // that are values of it; empty: others are, too
  };
  const Flag* find(std::string_view name) const;

  std::vector<Flag> flags_;
  NameIndex index_;  // of flags_
  std::vector<std::string>* notes_;
};

inline constexpr std::string_view kLauncherOption = "ignored (launcher option)";
// --num_gpus 8 and the like among a trainer's flags: the note says that one GPU is used.
void ignore_launcher_flags(FlagTable& table);

}  // namespace ballast::train
