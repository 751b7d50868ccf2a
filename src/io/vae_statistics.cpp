#include "io/vae_statistics.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <string_view>

#include "core/error.h"
#include "core/path_kind.h"
#include "io/json_reader.h"
#include "io/limits.h"
#include "memory/text_file.h"

namespace ballast {
namespace {

constexpr std::string_view kMeanKey = "latents_mean", kStdKey = "latents_std";

// The list that follows; more numbers than channels are not kept.
std::vector<float> read_list(JsonReader& json, const std::string& path, std::string_view key,
                             std::int64_t channels) {
  std::vector<float> values;
  std::int64_t count = 0;
  json.open_array();
  while (json.next_element()) {
    const double written = json.number();
    const auto value = static_cast<float>(written);
    if (!std::isfinite(value)) {
      fail(ErrorCode::input, "{}: {}[{}] is {}, which is too large", path, key, count, written);
    }
    // A std below the smallest normal float would make infinities of latents.
    if (key == kStdKey && value < std::numeric_limits<float>::min()) {
      fail(ErrorCode::input, "{}: {}[{}] is {}; a standard deviation is greater than 0", path, key,
           count, written);
    }
    if (++count <= channels) values.push_back(value);
  }
  if (count != channels) {
    fail(ErrorCode::input, "{}: {} has {} numbers, the latents have {} channels", path, key, count,
         channels);
  }
  return values;
}

}  // namespace

std::string vae_config_json(const std::string& vae) {
  namespace fs = std::filesystem;
  fs::path folder = vae;
  if (!is_folder(folder)) {
    if (!folder.filename().string().starts_with("diffusion_pytorch_model")) return "";
    folder = folder.parent_path();
  }
  const fs::path config = folder / "config.json";
  return is_file(config) ? config.string() : "";
}

VaeStatistics read_vae_statistics(const std::string& path, std::int64_t channels) {
  const std::string text = read_text_file(path, limits::kConfigBytes, "a config.json");
  JsonReader json({.text = text, .path = path, .rule = "config.json"});
  VaeStatistics found;
  bool mean = false, std = false;
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    const bool is_mean = key == kMeanKey;
    if (!is_mean && key != kStdKey) {
      json.skip();
      continue;
    }
    if (json.peek() == JsonReader::Kind::null) {
      json.null();
      continue;
    }
    bool& seen = is_mean ? mean : std;
    if (seen) {
      fail(ErrorCode::input, "{}: {} is there twice", path, is_mean ? kMeanKey : kStdKey);
    }
    seen = true;
    (is_mean ? found.mean : found.std) =
        read_list(json, path, is_mean ? kMeanKey : kStdKey, channels);
  }
  json.finish();
  if (mean != std) {
    fail(ErrorCode::input, "{} has {} and no {}", path, mean ? kMeanKey : kStdKey,
         mean ? kStdKey : kMeanKey);
  }
  return found;
}

}  // namespace ballast
