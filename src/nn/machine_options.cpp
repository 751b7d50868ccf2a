#include "nn/machine_options.h"

#include <fmt/format.h>

#include <vector>

#include "core/error.h"
#include "nn/memory_policy.h"
#include "nn/option_words.h"

namespace ballast {
namespace {

std::string not_found(std::string_view expected, std::string_view text) {
  return fmt::format("expected {}, found \"{}\"", expected, printable(text, 80));
}

template <class T, std::size_t N>
std::optional<std::string> set_word(T& to, const std::array<EnumName<T>, N>& words,
                                    std::string_view text) {
  const auto value = parse_enum(words, text);
  if (!value) return not_found(one_of(words, text), text);
  to = *value;
  return std::nullopt;
}

}  // namespace

std::string MachineOptions::weights_help() {
  return "the format of weights in memory: " + joined(weight_format_names());
}

std::optional<std::string> set_option(std::optional<Bytes>& to, std::string_view text) {
  if (const auto question = missing_unit(text)) return question;
  const auto size = parse_bytes(text);
  if (!size) return not_found("a size such as 24GB", text);
  to = size;
  return std::nullopt;
}

std::optional<std::string> set_option(DeviceChoice& to, std::string_view text) {
  return set_word(to, kDeviceNames, text);
}

std::optional<std::string> set_option(VerifyWeights& to, std::string_view text) {
  return set_word(to, kVerifyNames, text);
}

std::optional<std::string> set_option(WeightFormat& to, std::string_view text) {
  const auto format = find_weight_format(text);
  if (!format) return not_found(one_of(weight_format_names(), text), text);
  to = *format;
  return std::nullopt;
}

std::optional<std::string> set_option(PolicyName<std::string> to, std::string_view text) {
  if (text != "auto" && !find_policy(text)) {
    const std::vector<std::string> names = option_words(to);
    return not_found(one_of(std::vector<std::string_view>(names.begin(), names.end()), text), text);
  }
  to.name = text;
  return std::nullopt;
}

std::vector<std::string> option_words(const std::optional<Bytes>&) { return {}; }
std::vector<std::string> option_words(DeviceChoice) { return enum_names(kDeviceNames); }
std::vector<std::string> option_words(VerifyWeights) { return enum_names(kVerifyNames); }
std::vector<std::string> option_words(WeightFormat) {
  const auto names = weight_format_names();
  return {names.begin(), names.end()};
}
std::vector<std::string> option_words(PolicyName<std::string>) {
  std::vector<std::string> names = {"auto"};
  for (const MemoryPolicy& p : named_policies()) names.emplace_back(p.name);
  return names;
}

std::string option_text(const std::optional<Bytes>& size) {
  if (!size) return "";
  struct Unit {
    std::uint64_t bytes;
    const char* name;
  };
  for (const Unit& u : {Unit{1'000'000'000, "GB"},
                        {1 << 30, "GiB"},
                        {1'000'000, "MB"},
                        {1 << 20, "MiB"},
                        {1000, "kB"}}) {
    if (size->count > 0 && size->count % u.bytes == 0) {
      return fmt::format("{}{}", size->count / u.bytes, u.name);
    }
  }
  return fmt::format("{}B", size->count);
}
std::string option_text(DeviceChoice device) {
  return std::string(enum_name(kDeviceNames, device));
}
std::string option_text(VerifyWeights verify) {
  return std::string(enum_name(kVerifyNames, verify));
}
std::string option_text(WeightFormat format) { return std::string(name_of(format)); }
std::string option_text(PolicyName<std::string> policy) { return policy.name; }

}  // namespace ballast
