#include "models/wan/peft_config.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "io/json_writer.h"

namespace ballast::wan {
namespace {

double read_alpha(JsonReader& json) {
  const double alpha = json.number();
  if (!std::isfinite(alpha)) json.fail_value("alpha is not finite");
  return alpha;
}

// PEFT's keys are regular expressions that match the end of a name. People write names: dots match
// themselves.
std::string plain_pattern(JsonReader& json, std::string_view key) {
  std::string_view name = key;
  if (name.starts_with('^')) name.remove_prefix(1);
  if (name.ends_with('$')) name.remove_suffix(1);
  if (name.find_first_of("*+?[](){}|\\^$") != std::string_view::npos) {
    json.fail_here(fmt::format("alpha_pattern \"{}\" is a regular expression; only names are read",
                               printable(key)));
  }
  return std::string(name);
}

bool matches(std::string_view name, std::string_view end) {
  return name.ends_with(end) &&
         (name.size() == end.size() || name[name.size() - end.size() - 1] == '.');
}

}  // namespace

std::optional<double> PeftConfig::alpha_of(std::span<const std::string> names,
                                           std::int64_t rank) const {
  std::optional<double> found = alpha;
  for (const auto& [pattern, value] : alpha_pattern) {
    for (const std::string& name : names) {
      if (matches(name, pattern)) found = value;
    }
  }
  if (found && rank_stabilised) *found *= std::sqrt(static_cast<double>(rank));
  return found;
}

PeftConfig read_peft_config(JsonSource source) {
  PeftConfig config;
  JsonReader json(std::move(source));
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    constexpr std::string_view kPrefix = "transformer.";
    if (key.starts_with(kPrefix)) key.remove_prefix(kPrefix.size());
    if (json.peek() == JsonReader::Kind::null) {
      json.null();
    } else if (key == "lora_alpha") {
      config.alpha = read_alpha(json);
    } else if (key == "use_rslora") {
      config.rank_stabilised = json.boolean();
    } else if (key == "use_dora") {
      if (json.boolean()) json.fail_value("use_dora is true; Ballast does not read DoRA");
    } else if (key == "alpha_pattern") {
      json.open_object();
      for (std::string_view pattern; json.next_key(pattern);) {
        const std::string name = plain_pattern(json, pattern);
        config.alpha_pattern[name] = read_alpha(json);
      }
    } else {
      json.skip();
    }
  }
  json.finish();
  return config;
}

std::string peft_config_json(std::span<const LoraModule> modules,
                             std::span<const std::string> names, double dropout,
                             std::string_view prefix) {
  check(modules.size() == names.size(), "{} modules, {} names", modules.size(), names.size());
  // The rank most modules have; those with another are listed.
  std::map<std::int64_t, std::int64_t> count;
  for (const LoraModule& m : modules) ++count[m.rank];
  count.erase(0);
  const auto common = std::max_element(
      count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const std::int64_t rank = common == count.end() ? 0 : common->first;
  std::string targets, others;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (modules[i].rank == 0) continue;
    if (!targets.empty()) targets += ',';
    append_json_string(targets, names[i]);
    if (modules[i].rank == rank) continue;
    if (!others.empty()) others += ',';
    append_json_string(others, names[i]);
    others += fmt::format(":{}", modules[i].rank);
  }
  std::string text = "{";
  const auto field = [&](std::string_view key, std::string_view value) {
    if (text.size() > 1) text += ',';
    append_json_string(text, std::string(prefix) + std::string(key));
    text += ':';
    text += value;
  };
  field("alpha_pattern", "{" + others + "}");
  field("bias", "\"none\"");
  field("fan_in_fan_out", "false");
  field("inference_mode", "true");
  field("init_lora_weights", "true");
  field("lora_alpha", fmt::format("{}", rank));
  field("lora_dropout", fmt::format("{}", dropout));
  field("peft_type", "\"LORA\"");
  field("r", fmt::format("{}", rank));
  field("rank_pattern", "{" + others + "}");
  field("target_modules", "[" + targets + "]");
  field("task_type", "null");
  field("use_dora", "false");
  field("use_rslora", "false");
  return text + "}";
}

}  // namespace ballast::wan
