#include "models/student/config.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/error.h"
#include "core/nearest_name.h"
#include "io/json_reader.h"
#include "io/limits.h"
#include "memory/text_file.h"

namespace ballast::student {
namespace {

struct Field {
  std::string_view key;
  std::int64_t Config::*value;
  std::int64_t most;
};
constexpr std::array<Field, 8> kFields = {{
    {"hidden_size", &Config::hidden_size, 1 << 15},
    {"depth", &Config::depth, 1 << 10},
    {"num_heads", &Config::num_heads, 1 << 10},
    {"num_channels", &Config::num_channels, 1 << 10},
    {"image_size", &Config::image_size, 1 << 16},
    {"patch_size", &Config::patch_size, 1 << 12},
    {"text_max_length", &Config::text_max_length, 1 << 16},
    {"text_encoder_output_dim", &Config::text_dim, 1 << 16},
}};
constexpr std::string_view kModelType = "WanLiteStudent";
constexpr std::int64_t kMaxTokens = 1 << 18;

std::vector<std::string_view> known_keys() {
  std::vector<std::string_view> keys = {"model_type", "projection_factor"};
  for (const Field& f : kFields) keys.push_back(f.key);
  return keys;
}

}  // namespace

void validate(const Config& c) {
  for (const Field& f : kFields) {
    const std::int64_t v = c.*f.value;
    if (v >= 1 && v <= f.most) continue;
    fail(ErrorCode::input, "student config: {} is {}, expected 1 to {}", f.key, v, f.most);
  }
  const auto contradicts = [](std::string what, std::string advice) {
    fail(ErrorCode::input, "student config: " + std::move(what), {{std::move(advice), ""}});
  };
  if (c.hidden_size % c.num_heads != 0) {
    contradicts(
        fmt::format("hidden_size {} is no multiple of num_heads {}", c.hidden_size, c.num_heads),
        "choose a number of heads that divides it");
  }
  if (c.hidden_size % 2 != 0 || c.hidden_size < 4) {
    contradicts(fmt::format("hidden_size {}: the time vector needs an even number from 4 on",
                            c.hidden_size),
                "choose an even hidden_size");
  }
  if (c.grid() < 2 || c.grid() % 2 != 0 || c.tokens() > kMaxTokens) {
    contradicts(fmt::format("image_size {} / patch_size {} is a grid of {} x {}; the teacher needs "
                            "an even side, and at most {} places are supported",
                            c.image_size, c.patch_size, c.grid(), c.grid(), kMaxTokens),
                "choose sizes whose quotient is even");
  }
}

Config parse_config(std::string_view text, const std::string& path) {
  Config c;
  std::set<std::string_view> seen;
  JsonReader json({.text = text, .path = path, .rule = "student.json"});
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    const auto field = std::ranges::find(kFields, key, &Field::key);
    if (field != kFields.end()) {
      if (!seen.insert(field->key).second) json.fail_here(fmt::format("{} twice", key));
      c.*field->value = json.i64();
    } else if (key == "projection_factor") {
      c.projection_factor = json.number();
    } else if (key == "model_type") {
      if (const std::string_view type = json.string(); type != kModelType) {
        json.fail_value(fmt::format("model_type \"{}\", expected {}", printable(type), kModelType));
      }
    } else if (key.starts_with('_')) {
      json.skip();  // what diffusers adds to saved files
    } else {
      json.fail_here(fmt::format("unknown key \"{}\"{} (known: {})", printable(key),
                                 suggestion(key, known_keys()), joined(known_keys())));
    }
  }
  json.finish();
  for (const Field& f : kFields) {
    if (seen.contains(f.key)) continue;
    fail(ErrorCode::input, fmt::format("{} has no {}, which a student needs", path, f.key),
         {{fmt::format("add \"{}\": {}", f.key, Config().*f.value), "the usual value"}});
  }
  validate(c);
  return c;
}

Config read_config(const std::string& path) {
  return parse_config(read_text_file(path, limits::kConfigBytes, "a student's config.json"), path);
}

std::string config_text(const Config& c) {
  std::string text = "{\n  \"_class_name\": \"WanLiteStudent\",\n";
  text += "  \"_diffusers_version\": \"0.30.0\",\n";
  text += fmt::format("  \"model_type\": \"{}\",\n", kModelType);
  for (const Field& f : kFields) text += fmt::format("  \"{}\": {},\n", f.key, c.*f.value);
  text += fmt::format("  \"projection_factor\": {}\n}}\n", c.projection_factor);
  return text;
}

}  // namespace ballast::student
