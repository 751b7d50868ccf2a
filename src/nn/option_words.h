#pragma once

#include <string>
#include <vector>

#include "nn/machine_options.h"

namespace ballast {

// The words that a field of MachineOptions takes, for completions; empty: it takes other values.
std::vector<std::string> option_words(const std::optional<Bytes>& size);
std::vector<std::string> option_words(DeviceChoice device);
std::vector<std::string> option_words(VerifyWeights verify);
std::vector<std::string> option_words(WeightFormat format);
std::vector<std::string> option_words(PolicyName<std::string> policy);

template <class T, std::size_t N>
std::vector<std::string> enum_names(const std::array<EnumName<T>, N>& names) {
  std::vector<std::string> all;
  for (const EnumName<T>& n : names) all.emplace_back(n.name);
  return all;
}

}  // namespace ballast
