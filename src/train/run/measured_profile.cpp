#include "train/run/measured_profile.h"

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "core/log.h"
#include "io/atomic_file.h"
#include "io/json_reader.h"
#include "io/json_writer.h"
#include "memory/disk_file.h"
#include "memory/text_file.h"

namespace ballast::train {
namespace {

constexpr std::uint64_t kLongestFile = 64 << 10;  // bytes of the file

// Those that a machine may lack: of GPUs and their links, of GPUs with units for fp8, of disks that
// were written to.
template <class Profile, class Visit>
void each_optional_rate(Profile& p, Visit&& visit) {
  visit("product_step_seconds", p.product_step_seconds);
  visit("product_seconds", p.product_seconds);
  visit("attention_seconds", p.attention_seconds);
  visit("attention_backward_seconds", p.attention_backward_seconds);
  visit("both_ways_bandwidth", p.both_ways_bandwidth);
  visit("f32_gemm_flops", p.f32_gemm_flops);
  visit("fp8_gemm_flops", p.fp8_gemm_flops);
  visit("disk_write_bandwidth", p.disk_write_bandwidth);
}

// The only list of the others: reading and writing visit it.
template <class Profile, class Visit>
void each_rate(Profile& p, Visit&& visit) {
  visit("gemm_flops", p.gemm_flops);
  visit("attention_flops", p.attention_flops);
  visit("attention_backward_flops", p.attention_backward_flops);
  visit("memory_bandwidth", p.memory_bandwidth);
  visit("upload_bandwidth", p.upload_bandwidth);
  visit("download_bandwidth", p.download_bandwidth);
  visit("disk_bandwidth", p.disk_bandwidth);
  visit("launch_seconds", p.launch_seconds);
}

}  // namespace

std::filesystem::path profile_path(Device device) {
  const auto folder = [](const char* variable) -> std::filesystem::path {
    const char* value = std::getenv(variable);
    return value && *value == '/' ? value : "";
  };
  std::filesystem::path cache = folder("XDG_CACHE_HOME");
  if (cache.empty() && !folder("HOME").empty()) cache = folder("HOME") / ".cache";
  if (cache.empty()) return {};
  return cache / "ballast" / fmt::format("machine-{}.json", name_of(device));
}

void save_profile(const MachineProfile& profile, const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) fail_io(path.parent_path().string(), "make the folder", error.value());
  std::string text = "{\"name\": ";
  append_json_string(text, profile.name);
  text += ", \"description\": ";
  append_json_string(text, profile.description);
  text += fmt::format(", \"device\": \"{}\"", name_of(profile.device));
  each_rate(profile, [&](const char* name, double value) {
    text += fmt::format(",\n  \"{}\": {:.6g}", name, value);
  });
  each_optional_rate(profile, [&](const char* name, double value) {
    if (value > 0) text += fmt::format(",\n  \"{}\": {:.6g}", name, value);
  });
  text += "}\n";
  write_text_file(path.string(), text);
}

std::optional<MachineProfile> load_profile(const std::string& device_name,
                                           const std::filesystem::path& path) {
  if (path.empty()) return std::nullopt;
  MachineProfile p;
  p.estimate = false;
  try {
    const auto text = read_text_file_if_there(path.string(), kLongestFile, "a machine profile");
    if (!text) return std::nullopt;
    JsonReader json({.text = *text, .path = path.string(), .rule = "machine profile"});
    json.open_object();
    for (std::string_view key; json.next_key(key);) {
      const std::string name(key);
      if (name == "name") {
        p.name = json.string();
      } else if (name == "description") {
        p.description = json.string();
      } else if (name == "device") {
        p.device = json.string() == name_of(Device::cuda) ? Device::cuda : Device::cpu;
      } else {
        bool known = false;
        each_rate(p, [&](const char* rate, double& value) {
          if (known || name != rate) return;
          known = true;
          value = json.number();
        });
        each_optional_rate(p, [&](const char* rate, double& value) {
          if (known || name != rate) return;
          known = true;
          value = std::max(0.0, json.number());
        });
        if (!known) json.skip();
      }
    }
    json.finish();
  } catch (const Error& e) {
    log::warn("{}: the rates of this machine are estimated (ballast bench machine measures them)",
              e.what());
    return std::nullopt;
  }
  bool complete = true;
  each_rate(p, [&](const char*, double value) { complete &= value > 0; });
  if (!complete || p.name != device_name) return std::nullopt;
  return p;
}

MachineProfile with_measured_rates(MachineProfile profile, const std::string& device_name) {
  const auto measured = load_profile(device_name, profile_path(profile.device));
  if (!measured || measured->device != profile.device) return profile;
  MachineProfile p = *measured;
  p.name = profile.name;
  p.sm = profile.sm;
  p.device_memory = profile.device_memory;
  p.library_bytes = profile.library_bytes;
  // Profiles had none once.
  if (p.f32_gemm_flops <= 0) p.f32_gemm_flops = profile.f32_gemm_flops;
  return p;
}

}  // namespace ballast::train
