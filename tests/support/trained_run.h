#pragma once

// What a training run leaves behind that must not depend on how it was carried out: memory policy,
// threads, interruptions.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/run_log.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"
#include "train/checkpoint/checkpoint_search.h"
#include "train/config/read_config.h"
#include "train/trainer.h"

namespace ballast::support {

struct RunTrace {
  std::map<std::int64_t, std::string> steps;  // of the run log, numbers as they are written there
  std::map<std::int64_t, std::string> evals;
  std::map<std::string, std::string> files;  // the newest checkpoint's tensors, saved models: bytes
};

// The text of one value in a line of JSON: a number, or a list without lists in it.
inline std::string value_text(const std::string& line, const std::string& key) {
  const std::string name = "\"" + key + "\":";
  const std::size_t at = line.find(name);
  if (at == std::string::npos) return "(none)";
  const std::size_t from = at + name.size();
  const std::size_t to =
      line[from] == '[' ? line.find(']', from) + 1 : line.find_first_of(",}", from);
  return line.substr(from, to - from);
}

inline RunTrace read_trace(const std::string& folder) {
  namespace fs = std::filesystem;
  RunTrace trace;
  std::ifstream log(folder + "/" + std::string(kRunLogFile));
  for (std::string line; std::getline(log, line);) {
    const bool step = line.find("\"kind\":\"step\"") != std::string::npos;
    if (!step && line.find("\"kind\":\"eval\"") == std::string::npos) continue;
    std::string text;
    for (const char* key : {"epoch", "name", "loss", "lr", "grad_norm", "samples", "t"}) {
      text += std::string(key) + " " + value_text(line, key) + " ";
    }
    auto& of_step = (step ? trace.steps : trace.evals)[std::stoll(value_text(line, "step"))];
    EXPECT_TRUE(of_step.empty() || !step) << "twice in the run log: " << line;
    of_step += text;
  }
  std::string newest;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string path = fs::relative(entry.path(), folder).string();
    if (!entry.is_regular_file() || !path.ends_with(".safetensors")) continue;
    if (!path.starts_with(train::kCheckpointsFolder)) {
      trace.files[path] = test::read_whole(entry.path().string());
    } else {
      newest = std::max(newest, path);
    }
  }
  if (!newest.empty()) trace.files[newest] = test::read_whole(folder + "/" + newest);
  return trace;
}

// The first thing in which two runs differ; empty when they are the same to the bit.
inline std::string difference(const RunTrace& a, const RunTrace& b) {
  const auto lines = [](const char* what, const auto& x, const auto& y) -> std::string {
    for (const auto& [step, text] : x) {
      const auto other = y.find(step);
      if (other == y.end()) return fmt::format("{} {} is missing", what, step);
      if (other->second != text) {
        return fmt::format("{} {}:\n  {}\n  {}", what, step, text, other->second);
      }
    }
    if (x.size() != y.size()) return fmt::format("{} and {} {}s", x.size(), y.size(), what);
    return {};
  };
  if (auto d = lines("step", a.steps, b.steps); !d.empty()) return d;
  if (auto d = lines("evaluation", a.evals, b.evals); !d.empty()) return d;
  if (a.files.size() != b.files.size()) {
    return fmt::format("{} and {} files", a.files.size(), b.files.size());
  }
  for (const auto& [name, bytes] : a.files) {
    const auto other = b.files.find(name);
    if (other == b.files.end()) return name + " is missing";
    if (other->second == bytes) continue;
    const auto at = std::ranges::mismatch(bytes, other->second).in1 - bytes.begin();
    return fmt::format("{} differs at byte {} of {}", name, at, bytes.size());
  }
  return {};
}

// How a configuration is carried out in this process.
struct Variant {
  std::string name;
  std::optional<MemoryPolicy> policy = std::nullopt;  // none: what the configuration says
  int threads = 2;
  std::vector<train::Setting> flags = {};
  // What the configuration's dialect has no words for.
  std::function<void(train::TrainConfig&)> change = {};
};

// With BALLAST_TEST_DEVICE=cuda the GPU, without the memory that its context takes: budgets of
// tests are small.
inline train::RunTarget small_machine(int threads = 2) {
  train::RunTarget t;
  if (test_device() == Device::cuda) {
    t = train::gpu_target(open_gpu(), {});
    t.profile.library_bytes = {};
    return t;
  }
  t.profile.name = "this";
  t.profile.gemm_flops = t.profile.attention_flops = t.profile.attention_backward_flops = 50e9;
  t.profile.memory_bandwidth = 10e9;
  t.profile.upload_bandwidth = t.profile.download_bandwidth = 5e9;
  t.profile.disk_bandwidth = 1e9;
  t.backend = {.device = Device::cpu, .threads = threads};
  return t;
}

inline train::TrainOutcome train_in_process(const std::string& config, const Variant& how = {}) {
  train::TrainConfig wanted = train::read_config(config, how.flags);
  if (how.change) how.change(wanted);
  train::PreparedRun run =
      train::prepare_run(std::move(wanted), small_machine(how.threads), train::Purpose::train);
  if (how.policy) run.request.policy = how.policy;
  if (how.policy && how.policy->disk_state_groups > 0) run.request.budget.disk = 1_GB;
  auto outcome = fit::find_plan(run.request);
  auto* planned = std::get_if<fit::PlannedRun>(&outcome);
  if (planned == nullptr) throw std::runtime_error("refused under " + how.name);
  return train::train(std::move(run), std::move(*planned), {});
}

inline RunTrace trace_of(const std::string& config, const Variant& how = {}) {
  return read_trace(train_in_process(config, how).folder);
}

}  // namespace ballast::support
