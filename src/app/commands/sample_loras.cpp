#include "app/commands/sample_loras.h"

#include <cctype>
#include <filesystem>

#include "app/commands/lora_argument.h"
#include "infer/merged_model.h"
#include "memory/machine.h"
#include "models/wan/weights.h"

namespace ballast {

int expert_named(const std::string& path) {
  std::string word;
  for (const char c : std::filesystem::path(path).filename().string() + ".") {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (word == "high" || word == "highnoise") return 1;
    if (word == "low" || word == "lownoise") return 0;
    word.clear();
  }
  return -1;
}

namespace {

// A LoRA as it was asked for, and its expert; -1: any.
struct AskedLora {
  infer::LoraPath path;
  int expert = -1;
};

std::vector<AskedLora> asked_loras(const SampleOptions& o, const SampleRun& run) {
  const bool two = run.checkpoints.size() > 1;
  std::vector<AskedLora> all;
  for (const std::string& text : o.loras) {
    AskedLora& lora = all.emplace_back(AskedLora{path_and_strength(text)});
    if (two) lora.expert = expert_named(lora.path.first);
  }
  return all;
}

}  // namespace

void take_loras(const SampleOptions& o, const wan::Config& model, SampleRun& run) {
  const std::vector<AskedLora> all = asked_loras(o, run);
  run.loras.reserve(all.size());  // addresses are kept
  for (const AskedLora& lora : all) {
    run.loras.push_back(wan::LoraReader::open(lora.path.first, &model));
    if (!o.merge_folder.empty()) continue;
    run.job.loras.push_back({&run.loras.back(), lora.path.second, lora.expert});
  }
}

void take_weights(SampleRun& run) {
  fit::Request& fit = run.job.request;
  wan::job_of(fit).experts.clear();
  for (const WeightFiles& file : run.checkpoints) {
    wan::job_of(fit).experts.push_back(
        weight_groups(wan::job_of(fit).dit.config, file, wan::TensorMap(file)));
  }
}

void merge_loras(const SampleOptions& o, SampleRun& run) {
  if (o.merge_folder.empty() || o.plan_only) return;
  const std::vector<AskedLora> all = asked_loras(o, run);
  run.loras.clear();  // opened to be looked at
  for (std::size_t e = 0; e < run.checkpoints.size(); ++e) {
    std::vector<infer::LoraPath> own;
    for (const AskedLora& lora : all) {
      if (lora.expert < 0 || lora.expert == static_cast<int>(e)) own.push_back(lora.path);
    }
    if (own.empty()) continue;
    run.checkpoints[e] = WeightFiles::open(
        infer::merged_model(run.checkpoints[e], wan::job_of(run.job.request).dit.config, own,
                            o.merge_folder, usable_cpus(read_machine())));
  }
  take_weights(run);
}

}  // namespace ballast
