#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/commands/train_text.h"
#include "app/commands/vae_training.h"
#include "app/help_text.h"
#include "app/machine_flags.h"
#include "app/output.h"
#include "app/planning.h"
#include "app/planning_heap.h"
#include "core/error.h"
#include "core/log.h"
#include "core/nearest_name.h"
#include "core/to_size.h"
#include "fit/advice.h"
#include "infer/model_folder.h"
#include "models/wan/published.h"
#include "models/wan/recognise.h"
#include "models/wan/weights.h"
#include "report/plan_table.h"
#include "train/config/read_config.h"
#include "train/config/seq2seq_config.h"
#include "train/run/prepared_run.h"

namespace ballast {
namespace {

// ballast plan CONFIG: what a training run will use, per tier and phase, and how long a step takes.
// ballast plan --model ...: the same for one kind of step, without a configuration.
class Plan : public Command {
 public:
  void declare(CLI::App& app) override {
    app.description(
        app.get_description() +
        "\n\n"
        "ballast plan CONFIG.toml [OPTIONS]   a training run, as `ballast train` does it\n"
        "ballast plan --model MODEL [OPTIONS]  one kind of step, without a configuration\n");
    app.footer(
        "With a configuration, or a trainer's flags instead of one, plan takes what\n"
        "`ballast train` takes. Configurations to begin with are in examples/.\n\n" +
        more_help("plan"));
    app.add_option(
        "--model", model_,
        "a preset such as wan2.2-t2v-a14b, a file, index or folder, or an id of the hub such "
        "as Wan-AI/Wan2.2-T2V-A14B");
    app.add_option("--mode", mode_, "infer, lora or full")->capture_default_str();
    app.add_option("--frames", frames_, "frames of the clip, 4n + 1")->capture_default_str();
    app.add_option("--height", height_, "pixels")->capture_default_str();
    app.add_option("--width", width_, "pixels")->capture_default_str();
    app.add_option("--batch", batch_, "clips per step")->capture_default_str();
    app.add_option("--rank", rank_, "LoRA rank")->capture_default_str();
    app.add_flag("--fp8-matmul", fp8_matmul_,
                 "matrix products of blocks in fp8, on fp8 weights (scales per row)");
    declare_machine(app, machine_,
                    {"device", "non_deterministic", "threads", "gpu", "ram", "disk",
                     "ignore_limits", "policy", "weights", "json"});
    app.add_option("--target", target_, "this, or a machine to plan for: " + bundled_names())
        ->capture_default_str();
    app.add_flag("--details", details_, "also memory and predicted time by phase");
  }
  std::optional<std::string> help_page(const std::vector<std::string>& arguments) override {
    return training_help("plan", arguments);
  }
  bool takes(const std::vector<std::string>& arguments) override;
  void run() override;

 private:
  void plan_config();
  fit::Request request();
  wan::Config model(fit::Request& r);
  PlanTitle title(const fit::Request& r) const;
  std::vector<fit::Change> changes(const fit::Request& r, const Refusal& refusal) const;

  std::string model_, mode_ = "lora", target_ = "this";
  MachineOptions machine_;
  std::int64_t frames_ = 81, height_ = 480, width_ = 832, batch_ = 1, rank_ = 16;
  bool details_ = false, fp8_matmul_ = false;
  OwnFlags own_;  // of a training run
  std::optional<WeightFiles> checkpoint_;
};

const RegisterCommand<Plan> kPlan("plan", "what a run will use and how long a step takes");

wan::Config Plan::model(fit::Request& r) {
  model_ = infer::model_path(model_);
  if (!std::filesystem::exists(model_)) {
    if (const auto preset = wan::find_preset(model_)) {
      wan::job_of(r).experts = {planned_groups(*preset, DType::bf16)};
      return *preset;
    }
    if (const auto published = wan::find_published(model_)) {
      log::info("{} is not on this machine: planned from its published sizes, weights in {}",
                model_, name_of(published->stored));
      wan::job_of(r).experts = {planned_groups(published->config, published->stored)};
      return published->config;
    }
    std::vector<std::string_view> known;
    for (const wan::Config& c : wan::presets()) known.push_back(c.name);
    fail_unknown("--model", model_, known);
  }
  if (infer::holds_parts(model_)) model_ = infer::find_model_files(model_).transformer;
  checkpoint_ = WeightFiles::open(model_);
  const wan::TensorMap names(*checkpoint_);
  const auto recognised = recognise(*checkpoint_, names);
  if (!recognised) {
    fail(ErrorCode::input, fmt::format("{} holds no Wan transformer", model_),
         {{"ballast inspect " + model_, "says what it is"}});
  }
  wan::job_of(r).experts = {weight_groups(recognised->config, *checkpoint_, names)};
  return recognised->config;
}

fit::Request Plan::request() {
  fit::Request r = {.job = wan::FitJob()};
  const wan::Config c = model(r);
  const train::RunTarget target = find_target(target_, machine_);
  r.profile = target.profile;
  r.backend = target.backend;
  r.budget = train::resolve_budget(target, machine_);
  wan::DitJob& job = wan::job_of(r).dit;
  job.config = c;
  if (mode_ == "infer")
    job.mode = wan::Mode::infer;
  else if (mode_ == "lora")
    job.mode = wan::Mode::lora;
  else if (mode_ == "full")
    job.mode = wan::Mode::full;
  else
    fail_unknown("--mode", mode_, {"infer", "lora", "full"});
  job.precision = precision_on(r.backend.device);
  job.format = machine_.weights;
  if (fp8_matmul_) use_fp8_products(job, r.backend);
  if (batch_ < 1 || batch_ > 1024) {
    fail(ErrorCode::usage, fmt::format("--batch {}: expected 1 to 1024", batch_));
  }
  if (rank_ < 1 || rank_ > c.dim) {
    fail(ErrorCode::usage, fmt::format("--rank {}: expected 1 to {}", rank_, c.dim));
  }
  const wan::LatentSize size = latent_size(c, frames_, height_, width_);
  job.batches = {{.latents = std::vector(to_size(batch_), size), .timestep_rows = batch_}};
  if (job.mode != wan::Mode::infer) job.noising = wan::Noising::recorded;
  job.lora.rank = rank_;
  job.lora.alpha = static_cast<float>(rank_);
  job.record_update = job.mode != wan::Mode::infer;
  job.max_grad_norm = 1;
  r.policy = find_policy(machine_.policy);
  return r;
}

PlanTitle Plan::title(const fit::Request& r) const {
  return {.model = wan::job_of(r).dit.config.name,
          .mode = std::string(name_of(wan::job_of(r).dit.mode)),
          .shape = fmt::format("{} frames of {} x {}, {} tokens{}", frames_, width_, height_,
                               wan::job_of(r).dit.batches[0].latents[0].tokens(),
                               batch_ > 1 ? fmt::format(", batch {}", batch_) : ""),
          .weights = weights_text(wan::job_of(r).dit),
          .machine = machine_text(r.profile),
          .budget = r.budget,
          .shared_ram = r.profile.device == Device::cpu,
          .sizes = train::training_sizes(r),
          .ram_of_this_machine = borrows_ram(r.profile, machine_.ram.has_value())};
}

// What could be typed differently.
std::vector<fit::Change> Plan::changes(const fit::Request& request, const Refusal& refusal) const {
  const wan::Config c = wan::job_of(request).dit.config;
  const bool ram_bounds_all = !machine_.gpu && request.backend.device == Device::cpu;
  std::vector<fit::Change> all = fit::larger_budgets(refusal, ram_bounds_all, request.budget);
  const auto resize = [c](std::int64_t f, std::int64_t h, std::int64_t w) {
    return [c, f, h, w](fit::Request& r) {
      for (wan::Batch& b : wan::job_of(r).dit.batches) {
        for (wan::LatentSize& z : b.latents) z = latent_size(c, f, h, w);
      }
    };
  };
  const std::int64_t n = fit::largest_fitting((frames_ - 1) / 4, request, [&](std::int64_t k) {
    return resize(4 * k + 1, height_, width_);
  });
  if (4 * n + 1 < frames_) {
    all.push_back({fmt::format("--frames {}", 4 * n + 1), resize(4 * n + 1, height_, width_)});
  }
  const std::int64_t step = 2 * c.spatial_stride;
  const auto smaller = [&](std::int64_t pixels) {
    return std::max(step, pixels * 3 / 4 / step * step);
  };
  if (smaller(height_) < height_ || smaller(width_) < width_) {
    all.push_back({fmt::format("--height {} --width {}", smaller(height_), smaller(width_)),
                   resize(frames_, smaller(height_), smaller(width_))});
  }
  const wan::DitJob& job = wan::job_of(request).dit;
  if (!is_fp8(job.format) && job.mode != wan::Mode::full) {
    all.push_back({"--weights fp8",
                   [](fit::Request& r) { wan::job_of(r).dit.format = WeightFormat::f8_e4m3; }});
  }
  if (job.mode == wan::Mode::lora && rank_ > 1) {
    all.push_back({fmt::format("--rank {}", rank_ / 2),
                   [](fit::Request& r) { wan::job_of(r).dit.lora.rank /= 2; }});
  }
  if (job.mode == wan::Mode::full) {
    if (auto change = fit::state_on_disk(request)) {
      all.push_back(std::move(*change));
    }
    all.push_back(
        {"--mode lora", [](fit::Request& r) { wan::job_of(r).dit.mode = wan::Mode::lora; }});
  }
  if (batch_ > 1) {
    all.push_back({fmt::format("--batch {}", batch_ / 2), [n = batch_ / 2](fit::Request& r) {
                     for (wan::Batch& b : wan::job_of(r).dit.batches) {
                       b.latents.resize(to_size(n));
                       b.timestep_rows = n;
                     }
                   }});
  }
  if (request.policy) {
    all.push_back({"--policy auto", [](fit::Request& r) { r.policy.reset(); }});
  }
  return all;
}

void Plan::run() {
  const PlanningHeap heap;
  if (!own_.rest.empty()) return plan_config();
  if (model_.empty()) {
    fail(ErrorCode::usage, "there is nothing to plan",
         {{"ballast plan CONFIG.toml", "a training run"},
          {"ballast plan --model wan2.2-t2v-a14b", "one kind of step, without a configuration"}});
  }
  const fit::Request r = request();
  fit::NeedsCache known;
  const auto outcome = fit::find_plan(r, known);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    fail_refused(
        title(r), r, *refusal, std::move(known), [&] { return changes(r, *refusal); },
        machine_.json);
  }
  show_plan(title(r), train::view_of(r, std::get<fit::PlannedRun>(outcome)),
            {machine_.json, details_, machine_.ignore_limits});
}

// A training run: its configuration says all but the machine.
void Plan::plan_config() {
  if (train::is_seq2seq(own_.rest)) return plan_text(own_);
  train::TrainConfig config = train::read_config(own_.rest);
  apply(own_, config.memory);
  if (config.vae) return plan_vae_training(std::move(config), own_);
  const train::RunTarget target = find_target(own_.target, config.memory);
  const train::PreparedRun run =
      train::prepare_run(std::move(config), target, train::Purpose::plan);
  fit::NeedsCache known;
  const auto outcome = fit::find_plan(run.request, known);
  const PlanTitle title = train::title_of(run);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    fail_refused(
        title, run.request, *refusal, std::move(known),
        [&] { return possible_changes(run, *refusal); }, own_.json, run.notes);
  }
  show_plan(title, view_of(run.request, std::get<fit::PlannedRun>(outcome), &run),
            plan_output(own_));
}

bool Plan::takes(const std::vector<std::string>& arguments) {
  // --model is a flag of the flow-matching trainer, too.
  const bool training = train::names_a_run(arguments);
  const bool flags_only = std::ranges::any_of(arguments, [&](const std::string& a) {
    return !training && (a == "--model" || a.starts_with("--model="));
  });
  if (flags_only || arguments.empty()) return false;
  own_ = split_own_flags(arguments);
  return true;
}

}  // namespace
}  // namespace ballast
