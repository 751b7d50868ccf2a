#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/config/flags.h"
#include "train/config/python_literal.h"

namespace ballast::train {

// The words of a flag such as --optimizer_args weight_decay=0.1 "betas=(0.9, 0.99)", whose values
// are Python literals. A key that is not known, or a value of another type, fails. None is absent.
class KeyValues {
 public:
  KeyValues(const Setting& flag, std::initializer_list<std::string_view> known);

  std::optional<double> number(std::string_view key, double least) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::pair<double, double>> pair(std::string_view key) const;
  std::vector<std::string> strings(std::string_view key) const;  // empty when absent
  bool has(std::string_view key) const { return find(key) != nullptr; }
  [[noreturn]] void fail_value(std::string_view key, std::string_view expected) const;

 private:
  const TomlValue* find(std::string_view key) const;
  double number_of(std::string_view key, const TomlValue& value) const;

  std::string where_;
  ErrorCode code_;
  std::vector<std::pair<std::string, PythonLiteral>> items_;
};

}  // namespace ballast::train
