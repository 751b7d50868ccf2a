#include "train/base_merge.h"

#include <filesystem>

#include "core/error.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/random.h"
#include "core/thread_pool.h"
#include "io/atomic_folder.h"
#include "memory/machine.h"
#include "models/wan/lora_merge.h"
#include "models/wan/weights.h"

namespace ballast::train {
namespace {

// Which files a copy was made of: their paths, sizes and times.
std::string identity(const PreparedRun& run, const Checkpoint& model) {
  std::string text;
  const auto add = [&](const std::string& path) {
    std::error_code error;
    text += fmt::format("{}|{}|{}|", path, std::filesystem::file_size(path, error),
                        std::filesystem::last_write_time(path, error).time_since_epoch().count());
  };
  for (const SafetensorsFile& f : model.files()) add(f.path());
  for (const auto& [path, strength] : run.config.model.base_loras) {
    add(path);
    text += fmt::format("{}|", strength);
  }
  return fmt::format("{:016x}", hash_of(text));
}

std::string merged_copy(const PreparedRun& run, const Checkpoint& model) {
  const std::string path =
      fmt::format("{}/merged-{}.safetensors", run.config.output_dir, identity(run, model));
  if (std::filesystem::exists(path)) {
    log::info("base LoRAs: {} was merged before", path);
    return path;
  }
  create_folders(run.config.output_dir);
  std::vector<wan::LoraReader> readers;
  std::vector<wan::LoraStrength> loras;
  readers.reserve(run.config.model.base_loras.size());  // addresses are kept
  for (const auto& [file, strength] : run.config.model.base_loras) {
    readers.push_back(wan::LoraReader::open(file, &run.model()));
    loras.push_back({.lora = &readers.back(), .strength = strength});
  }
  const wan::TensorMap names(model);
  const Backend& backend = run.request.backend;  // merging is the processors' work
  ThreadPool pool(backend.device == Device::cpu ? backend.threads : usable_cpus(read_machine()));
  wan::LoraMerge merge(model, names, loras, pool);
  wan::MergeOptions options;
  Progress progress("merging base LoRAs",
                    static_cast<std::int64_t>(wan::merged_bytes(model, names, options)),
                    Progress::Unit::bytes);
  options.progress = [&](std::uint64_t bytes) { progress.add(static_cast<std::int64_t>(bytes)); };
  write_merged(path, model, names, merge, options);
  return path;
}

}  // namespace

Bytes base_merge_bytes(const Checkpoint& model) {
  return {wan::merged_bytes(model, wan::TensorMap(model), {})};
}

void merge_base_loras(PreparedRun& run) {
  if (run.config.model.base_loras.empty()) return;
  for (std::size_t e = 0; e < run.checkpoints.size(); ++e) {
    run.checkpoints[e] = Checkpoint::open(merged_copy(run, run.checkpoints[e]));
    run.request.experts[e] =
        weight_groups(run.model(), run.checkpoints[e], wan::TensorMap(run.checkpoints[e]));
  }
}

}  // namespace ballast::train
