#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/nearest_name.h"
#include "app/output.h"
#include "core/error.h"
#include "core/log.h"
#include "memory/machine.h"
#include "models/wan/fit.h"
#include "models/wan/recognise.h"
#include "models/wan/weights.h"
#include "report/plan_table.h"

namespace ballast {
namespace {

// ballast plan: what a run will use, per tier and phase, and how long a step takes.
class Plan : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--model", model_,
                   "a preset such as wan2.2-t2v-a14b, or a safetensors file, index or folder")
        ->required();
    app.add_option("--mode", mode_, "infer, lora or full")->capture_default_str();
    app.add_option("--frames", frames_, "pictures of the clip, 4n + 1")->capture_default_str();
    app.add_option("--height", height_, "pixels")->capture_default_str();
    app.add_option("--width", width_, "pixels")->capture_default_str();
    app.add_option("--batch", batch_, "clips per step")->capture_default_str();
    app.add_option("--rank", rank_, "LoRA rank")->capture_default_str();
    app.add_option("--weights", weights_,
                   "stored, f32, bf16, fp8 or int8: how matrices stand on the device")
        ->capture_default_str();
    app.add_option("--gpu", gpu_, "device memory Ballast may use, for example 24GB");
    app.add_option("--ram", ram_, "host memory, pinned memory included");
    app.add_option("--disk", disk_, "space for streamed weights and optimizer state");
    app.add_option("--target", target_, "this, or a machine to plan for: h200, a100, rtx3090, ...")
        ->capture_default_str();
    app.add_option("--policy", policy_, "auto, or a policy's name")->capture_default_str();
    app.add_option("--threads", threads_, "compute threads of the CPU backend (0: all)");
    app.add_flag("--json", json_, "print JSON, sizes in bytes");
  }
  void run() override;

 private:
  wan::FitRequest request();
  MachineProfile profile() const;
  Budget budget(const MachineProfile& profile) const;
  wan::Config model(wan::FitRequest& r);
  PlanTitle title(const wan::FitRequest& r) const;

  std::string model_, mode_ = "lora", weights_ = "stored", target_ = "this", policy_ = "auto";
  std::string gpu_, ram_, disk_;
  std::int64_t frames_ = 81, height_ = 480, width_ = 832, batch_ = 1, rank_ = 16;
  int threads_ = 0;
  bool json_ = false;
  std::optional<Checkpoint> checkpoint_;
};

const RegisterCommand<Plan> kPlan("plan", "what a run will use and how long a step takes");

[[noreturn]] void fail_unknown(std::string_view flag, const std::string& value,
                               const std::vector<std::string_view>& known) {
  fail(ErrorCode::usage, fmt::format("{} {} is unknown{}: known are {}", flag, printable(value),
                                     suggestion(value, known), joined(known)));
}

// Rates of the CPU backend for a prediction: order of magnitude only, from clock and lanes;
// measured ones come from the machine benchmark.
MachineProfile cpu_profile(int threads) {
  const double cores = threads;
  return {.name = "this",
          .description = "this machine's processors",
          .device = Device::cpu,
          .gemm_flops = 35e9 * cores,
          .attention_flops = 28e9 * cores,
          .memory_bandwidth = 10e9 * cores,
          .upload_bandwidth = 5e9,
          .download_bandwidth = 5e9,
          .disk_bandwidth = 1e9,
          .launch_seconds = 5e-6,
          .device_memory = {},
          .library_bytes = {},
          .estimate = true};
}

MachineProfile Plan::profile() const {
  if (target_ == "this") {
    return cpu_profile(threads_ > 0 ? threads_ : usable_cpus(read_machine()));
  }
  if (const auto p = find_profile(target_)) return *p;
  std::vector<std::string_view> known = {"this"};
  for (const MachineProfile& p : bundled_profiles()) known.push_back(p.name);
  fail_unknown("--target", target_, known);
}

Budget Plan::budget(const MachineProfile& profile) const {
  Budget b = default_budget(read_machine());
  if (profile.device == Device::cuda) b.gpu = profile.device_memory;
  if (!gpu_.empty()) set_field(b, "gpu", gpu_);
  if (!ram_.empty()) set_field(b, "ram", ram_);
  if (!disk_.empty()) set_field(b, "disk", disk_);
  // Without a GPU the device arena is RAM: naming only --ram bounds it as well.
  if (gpu_.empty() && profile.device == Device::cpu) b.gpu = b.host;
  return b;
}

wan::Config Plan::model(wan::FitRequest& r) {
  if (const auto preset = wan::find_preset(model_)) {
    r.groups = planned_groups(*preset, DType::bf16);
    return *preset;
  }
  if (!std::filesystem::exists(model_)) {
    std::vector<std::string_view> known;
    for (const wan::Config& c : wan::presets()) known.push_back(c.name);
    fail_unknown("--model", model_, known);
  }
  checkpoint_ = Checkpoint::open(model_);
  const wan::TensorMap names(*checkpoint_);
  const auto recognised = recognise(*checkpoint_, names);
  if (!recognised) {
    fail(ErrorCode::input, fmt::format("{} holds no Wan transformer", model_),
         {{"ballast inspect " + model_, "says what it is"}});
  }
  r.groups = weight_groups(recognised->config, *checkpoint_, names);
  return recognised->config;
}

wan::FitRequest Plan::request() {
  wan::FitRequest r;
  const wan::Config c = model(r);
  r.profile = profile();
  r.budget = budget(r.profile);
  const bool cuda = r.profile.device == Device::cuda;
  r.backend = {.device = r.profile.device,
               .threads = cuda           ? 1
                          : threads_ > 0 ? threads_
                                         : usable_cpus(read_machine())};
  wan::DitJob& job = r.job;
  job.config = c;
  if (mode_ == "infer")
    job.mode = wan::Mode::infer;
  else if (mode_ == "lora")
    job.mode = wan::Mode::lora;
  else if (mode_ == "full")
    job.mode = wan::Mode::full;
  else
    fail_unknown("--mode", mode_, {"infer", "lora", "full"});
  job.precision = cuda ? wan::Precision{DType::bf16, DType::bf16} : wan::Precision{};
  const auto format = find_weight_format(weights_);
  if (!format) fail_unknown("--weights", weights_, {"stored", "f32", "bf16", "fp8", "int8"});
  job.format = *format;
  if (batch_ < 1 || batch_ > 1024) {
    fail(ErrorCode::usage, fmt::format("--batch {}: expected 1 to 1024", batch_));
  }
  if (rank_ < 1 || rank_ > c.dim) {
    fail(ErrorCode::usage, fmt::format("--rank {}: expected 1 to {}", rank_, c.dim));
  }
  const wan::LatentSize size = latent_size(c, frames_, height_, width_);
  job.latents.assign(static_cast<std::size_t>(batch_), size);
  job.timestep_rows = batch_;
  job.lora = {.rank = rank_, .alpha = static_cast<float>(rank_)};
  job.record_update = job.mode != wan::Mode::infer;
  job.max_grad_norm = 1;
  if (policy_ != "auto") {
    r.policy = find_policy(policy_);
    if (!r.policy) {
      std::vector<std::string_view> known = {"auto"};
      for (const MemoryPolicy& p : named_policies()) known.push_back(p.name);
      fail_unknown("--policy", policy_, known);
    }
  }
  return r;
}

PlanTitle Plan::title(const wan::FitRequest& r) const {
  return {.model = r.job.config.name,
          .mode = std::string(name_of(r.job.mode)),
          .shape = fmt::format("{} frames of {} x {}, {} tokens{}", frames_, width_, height_,
                               r.job.latents[0].tokens(),
                               batch_ > 1 ? fmt::format(", batch {}", batch_) : ""),
          .weights = std::string(name_of(r.job.format)),
          .machine = fmt::format("{}{}", r.profile.description,
                                 r.profile.estimate ? " (rates are estimates)" : ""),
          .budget = r.budget,
          .shared_ram = r.profile.device == Device::cpu};
}

// "device memory", "device and host memory"
std::string joined_tiers(const Refusal& refusal) {
  std::string text;
  for (const Shortage& s : refusal.shortages) {
    text += fmt::format("{}{}", text.empty() ? "" : " and ", name_of(s.tier));
  }
  return text + " memory";
}

std::string describe(const MemoryPolicy& p, int groups) {
  std::string text =
      p.slots == 0
          ? "weights resident"
          : fmt::format("weights streamed from {} through {} slot{}, {} of {} groups resident",
                        p.home == WeightHome::disk ? "disk" : "host memory", p.slots,
                        p.slots == 1 ? "" : "s", p.resident_groups, groups);
  text += fmt::format("; activations {}", name_of(p.activations));
  if (p.offload) text += ", offloaded to host memory";
  if (p.chunk_tokens > 0) text += fmt::format("; chunks of {} tokens", p.chunk_tokens);
  if (p.heads_per_group > 0)
    text += fmt::format("; attention backward {} heads at a time", p.heads_per_group);
  return text;
}

void Plan::run() {
  const wan::FitRequest r = request();
  std::variant<wan::PlannedRun, Refusal> outcome = fit(r);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    // The answer first; the advice is planned while it is read.
    std::string reason =
        r.policy ? fmt::format("the run does not fit under policy {}", refusal->policy)
                 : fmt::format("the run does not fit, not even under {}", refusal->policy);
    for (const Shortage& s : refusal->shortages) reason += "\n" + describe_shortage(s, title(r));
    log::info("{}", reason);
    std::vector<Advice> advice = advise(r, frames_, height_, width_);
    if (json_) print(refusal_json(title(r), *refusal, advice));
    fail(ErrorCode::refused, fmt::format("refused: {} is short", joined_tiers(*refusal)),
         std::move(advice));
  }
  const wan::PlannedRun& run = std::get<wan::PlannedRun>(outcome);
  const PlanView view = {.plan = run.plan,
                         .times = run.times,
                         .lines = run.lines,
                         .policy = run.policy.name,
                         .policy_text = describe(run.policy, group_count(r.job.config))};
  print(json_ ? plan_json(title(r), view) : plan_table(title(r), view));
}

}  // namespace
}  // namespace ballast
