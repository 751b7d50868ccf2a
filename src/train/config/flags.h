#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "core/error.h"
#include "io/name_index.h"
#include "io/toml_table.h"

namespace ballast::train {

// One setting of a run: a flag of the command line or a key of a file with the same names.
struct Setting {
  std::string name;  // without dashes in front, underscores inside
  std::vector<std::string> values;
  std::string where;                  // "--network_dim", "run.toml line 4: network_dim"
  ErrorCode code = ErrorCode::usage;  // of what is wrong with it; input for a file
  bool off = false;                   // a switch written as false in a file

  [[noreturn]] void fail_value(std::string_view expected) const;
  const std::string& text() const;  // of exactly one value
  std::int64_t integer() const;
  double number() const;  // finite
  Bytes size() const;     // of memory, with a unit
};

struct CommandLine {
  std::string config;  // the one argument that is no flag and no flag's value; "": none
  std::vector<Setting> settings;
};

// --name value..., --name=value; dashes and underscores are alike. `switches` are the flags without
// a value: what follows one of them is the config.
CommandLine split_arguments(std::span<const std::string> arguments,
                            std::span<const std::string> switches);

// All keys of a file as settings; names of tables are left out, as musubi-tuner does.
std::vector<Setting> flattened(const TomlFile& file);

// The flags of one dialect: what each does, or why it does nothing. Reads settings and describes
// itself; a flag that is not in the table fails with the nearest name.
class FlagTable {
 public:
  enum class Takes : std::uint8_t { nothing, one, maybe_one, many };

  explicit FlagTable(std::vector<std::string>* notes) : notes_(notes) {}

  void add(std::string_view name, bool& to, std::string_view help);
  void add(std::string_view name, std::string& to, std::string_view help);
  void add(std::string_view name, std::vector<std::string>& to, std::string_view help);
  void add(std::string_view name, std::int64_t& to, std::string_view help, std::int64_t least = 0);
  void add(std::string_view name, std::optional<std::int64_t>& to, std::string_view help,
           std::int64_t least = 0);
  void add(std::string_view name, double& to, std::string_view help, double least = 0);
  void add(std::string_view name, Takes takes, std::string_view help,
           std::function<void(const Setting&)> set);
  // Accepted, with the note "--sdpa: <reason>".
  void ignore(std::string_view name, Takes takes, std::string_view reason);
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

 private:
  enum class Use : std::uint8_t { honoured, ignored, rejected };
  struct Flag {
    std::string name;
    Takes takes;
    std::string help;
    Use use;
    std::function<void(const Setting&)> set;
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
