#include "models/t5/adapter_config.h"

#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/path_kind.h"
#include "io/json_reader.h"
#include "io/json_writer.h"
#include "io/limits.h"
#include "memory/text_file.h"

namespace ballast::t5 {
namespace {

namespace fs = std::filesystem;

constexpr double kMaxAlpha = 1e9;  // factors are scaled in f32

// null, false, [] and {}: the same as nothing.
bool holds_something(JsonReader& json) {
  using Kind = JsonReader::Kind;
  switch (json.peek()) {
    case Kind::null:
      json.null();
      return false;
    case Kind::boolean:
      return json.boolean();
    case Kind::object: {
      bool any = false;
      json.open_object();
      for (std::string_view key; json.next_key(key); any = true) json.skip();
      return any;
    }
    case Kind::array: {
      bool any = false;
      json.open_array();
      for (; json.next_element(); any = true) json.skip();
      return any;
    }
    default:
      json.skip();
      return true;
  }
}

std::vector<std::string> words_of(JsonReader& json) {
  std::vector<std::string> all;
  if (json.peek() != JsonReader::Kind::array) {  // a pattern, which the tensors answer better
    json.skip();
    return all;
  }
  json.open_array();
  while (json.next_element()) {
    all.emplace_back(json.string());
    if (all.size() > 4096) json.fail_value("too many targets");
  }
  return all;
}

}  // namespace

bool is_adapter_folder(const std::string& folder) {
  return is_file(fs::path(folder) / kAdapterConfigFile);
}

AdapterConfig read_adapter_config(const std::string& folder) {
  const std::string path = folder + "/" + kAdapterConfigFile;
  const std::string text = read_text_file(path, limits::kConfigBytes, "an adapter_config.json");
  AdapterConfig c;
  JsonReader json({.text = text, .path = path, .rule = "adapter_config.json"});
  json.open_object();
  for (std::string_view view; json.next_key(view);) {
    const std::string key(view);
    if (key == "r") {
      c.rank = json.i64();
      if (c.rank < 1 || c.rank > kMaxAdapterRank) json.fail_value("expected a rank from 1 to 4096");
    } else if (key == "lora_alpha") {
      c.alpha = json.number();
      if (std::abs(c.alpha) > kMaxAlpha) json.fail_value("expected an alpha of at most 1e9");
    } else if (key == "lora_dropout") {
      c.dropout = json.number();
    } else if (key == "use_rslora") {
      c.root_scale = json.boolean();
    } else if (key == "target_modules") {
      c.targets = words_of(json);
    } else if (key == "base_model_name_or_path") {
      if (json.peek() == JsonReader::Kind::null) {
        json.null();
      } else {
        c.base_model = json.string();
      }
    } else if (key == "peft_type") {
      const std::string type(json.string());
      if (type != "LORA") fail_adapter(path, fmt::format("{} is no LoRA", printable(type)));
    } else if (key == "bias") {
      const std::string bias(json.string());
      if (bias != "none") fail_adapter(path, fmt::format("it trains biases ({})", printable(bias)));
    } else if (key == "rank_pattern" || key == "alpha_pattern" || key == "use_dora" ||
               key == "fan_in_fan_out" || key == "modules_to_save" || key == "use_qalora") {
      // A rank is seen in the tensors.
      if (holds_something(json) && key != "rank_pattern") {
        fail_adapter(path, fmt::format("{} changes what the factors mean", key));
      }
    } else {
      json.skip();
    }
  }
  json.finish();
  return c;
}

std::string adapter_config_json(const AdapterConfig& c) {
  std::string targets;
  for (const std::string& t : c.targets) {
    targets += targets.empty() ? "\n    " : ",\n    ";
    append_json_string(targets, t);
  }
  std::string base = "null";
  if (!c.base_model.empty()) {
    base.clear();
    append_json_string(base, c.base_model);
  }
  return fmt::format(
      "{{\n  \"alpha_pattern\": {{}},\n  \"auto_mapping\": null,\n"
      "  \"base_model_name_or_path\": {},\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": false,\n"
      "  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n  \"lora_alpha\": {},\n"
      "  \"lora_dropout\": {},\n  \"modules_to_save\": null,\n  \"peft_type\": \"LORA\",\n"
      "  \"r\": {},\n  \"rank_pattern\": {{}},\n  \"revision\": null,\n"
      "  \"target_modules\": [{}\n  ],\n  \"task_type\": \"SEQ_2_SEQ_LM\",\n"
      "  \"use_dora\": false,\n  \"use_rslora\": {}\n}}\n",
      base, c.alpha, c.dropout, c.rank, targets, c.root_scale);
}

void fail_adapter(const std::string& path, std::string_view what) {
  fail(ErrorCode::input, fmt::format("{}: {}", path, what),
       {{"an adapter of PEFT's LoRA without DoRA, patterns or biases", "is what can be read"}});
}

}  // namespace ballast::t5
