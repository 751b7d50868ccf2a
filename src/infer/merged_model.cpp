#include "infer/merged_model.h"

#include <filesystem>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/random.h"
#include "core/thread_pool.h"
#include "io/atomic_folder.h"
#include "models/wan/lora_merge.h"

namespace ballast::infer {
namespace {

// Which files a copy was made of: their paths, sizes and times.
std::string identity(const WeightFiles& model, std::span<const LoraPath> loras) {
  std::string text;
  const auto add = [&](const std::string& path) {
    std::error_code error;
    text += fmt::format("{}|{}|{}|", path, std::filesystem::file_size(path, error),
                        std::filesystem::last_write_time(path, error).time_since_epoch().count());
  };
  for (const SafetensorsFile& f : model.files()) add(f.path());
  for (const auto& [path, strength] : loras) {
    add(path);
    text += fmt::format("{}|", strength);
  }
  return fmt::format("{:016x}", hash_of(text));
}

}  // namespace

Bytes merged_model_bytes(const WeightFiles& model) {
  return {wan::merged_bytes(model, wan::TensorMap(model), {})};
}

std::string merged_model(const WeightFiles& model, const wan::Config& config,
                         std::span<const LoraPath> loras, const std::string& folder, int threads) {
  const std::string path = fmt::format("{}/merged-{}.safetensors", folder, identity(model, loras));
  if (std::filesystem::exists(path)) {
    log::info("LoRAs: {} was merged before", path);
    return path;
  }
  create_folders(folder);
  std::vector<wan::LoraReader> readers;
  std::vector<wan::LoraStrength> strengths;
  readers.reserve(loras.size());  // addresses are kept
  for (const auto& [file, strength] : loras) {
    readers.push_back(wan::LoraReader::open(file, &config));
    strengths.push_back({.lora = &readers.back(), .strength = strength});
  }
  const wan::TensorMap names(model);
  ThreadPool pool(threads);
  wan::LoraMerge merge(model, names, strengths, pool);
  wan::MergeOptions options;
  Progress progress("merging LoRAs",
                    static_cast<std::int64_t>(wan::merged_bytes(model, names, options)),
                    Progress::Unit::bytes);
  options.progress = [&](std::uint64_t bytes) { progress.add(static_cast<std::int64_t>(bytes)); };
  write_merged(path, model, names, merge, options);
  return path;
}

}  // namespace ballast::infer
