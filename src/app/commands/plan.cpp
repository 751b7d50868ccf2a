#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/commands/train_text.h"
#include "app/commands/vae_training.h"
#include "app/help_text.h"
#include "app/machine_flags.h"
#include "app/output.h"
#include "app/plan_page_flags.h"
#include "app/plan_pages.h"
#include "app/planning.h"
#include "app/planning_heap.h"
#include "core/error.h"
#include "core/log.h"
#include "core/to_size.h"
#include "fit/advice.h"
#include "infer/model_folder.h"
#include "io/atomic_file.h"
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
    app.add_option("--html", pages_.html,
                   "also write a page that shows every buffer over time, the lanes of a step and, "
                   "where the run does not fit, the plan behind each line of advice");
    app.add_option("--versus", pages_.versus,
                   "on that page, beside the plan: the same with other flags ('--gpu 16GB'), or "
                   "another configuration; may be repeated");
    app.add_option("--grid", pages_.grid,
                   "a table of all combinations, also on that page: 'gpu=8GB,24GB frames=25,81'");
  }
  std::optional<std::string> help_page(const std::vector<std::string>& arguments) override {
    return training_help("plan", arguments);
  }
  bool takes(const std::vector<std::string>& arguments) override;
  void run() override;

 private:
  // A plan of a video model, or why there is none.
  struct Found {
    PlanTitle title;
    fit::Request request;
    fit::NeedsCache known;
    fit::Outcome outcome;
    std::optional<train::PreparedRun> run;  // of a configuration
  };
  std::optional<train::TrainConfig> config() const;
  Found find(std::optional<train::TrainConfig> config);
  void parse(std::vector<std::string> arguments);
  MappedPlan mapped(const OtherPlan& other) const;
  PlanOutput output() const;
  std::vector<fit::Change> changes(const Found& found, const Refusal& refusal) const;
  fit::Request request();
  wan::Config model(fit::Request& r);
  PlanTitle title(const fit::Request& r) const;
  std::vector<fit::Change> changes(const fit::Request& r, const Refusal& refusal) const;

  std::string model_, mode_ = "lora", target_ = "this";
  MachineOptions machine_;
  std::int64_t frames_ = 81, height_ = 480, width_ = 832, batch_ = 1, rank_ = 16;
  bool details_ = false, fp8_matmul_ = false;
  OwnFlags own_;  // of a training run
  PlanPageFlags pages_;
  std::vector<std::string> arguments_;  // without those of the page
  std::vector<MappedPlan> others_;
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
    fail(ErrorCode::usage, "--batch {}: expected 1 to 1024", batch_);
  }
  if (rank_ < 1 || rank_ > c.dim) {
    fail(ErrorCode::usage, "--rank {}: expected 1 to {}", rank_, c.dim);
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

// The whole of a command line, for a plan beside this one.
void Plan::parse(std::vector<std::string> arguments) {
  CLI::App app;
  declare(app);
  std::ranges::reverse(arguments);  // as CLI11 wants them
  app.parse(std::move(arguments));
}

PlanOutput Plan::output() const {
  PlanOutput o = own_.rest.empty() ? PlanOutput{.json = machine_.json,
                                                .details = details_,
                                                .ignore_limits = machine_.ignore_limits}
                                   : plan_output(own_);
  o.html = pages_.html;
  o.others = others_;
  return o;
}

std::vector<fit::Change> Plan::changes(const Found& found, const Refusal& refusal) const {
  return found.run ? possible_changes(*found.run, refusal) : changes(found.request, refusal);
}

MappedPlan Plan::mapped(const OtherPlan& other) const {
  Plan plan;
  if (!plan.takes(other.arguments)) plan.parse(other.arguments);
  if (train::is_seq2seq(plan.own_.rest)) {
    fail(ErrorCode::usage, "--versus and --grid take plans of video models");
  }
  Found found = plan.find(plan.config());
  const auto map = [&](const fit::PlannedRun& run, const std::string& verdict) {
    const PlanView view = train::view_of(found.request, run, found.run ? &*found.run : nullptr);
    return map_run(other.label, found.title, found.request, run,
                   verdict.empty() ? verdict_line(found.title, view) : verdict, view.policy_text,
                   kSmallMap);
  };
  if (const auto* run = std::get_if<fit::PlannedRun>(&found.outcome)) return map(*run, "");
  fit::PlannedRun refused;
  (void)fit::find_plan(found.request, found.known, &refused);
  return map(refused, fit::refusal_verdict(std::get<Refusal>(found.outcome), found.title));
}

void Plan::run() {
  const PlanningHeap heap;
  if (own_.rest.empty() && model_.empty()) {
    fail(ErrorCode::usage, "there is nothing to plan",
         {{"ballast plan CONFIG.toml", "a training run"},
          {"ballast plan --model wan2.2-t2v-a14b", "one kind of step, without a configuration"}});
  }
  if (!pages_.html.empty()) check_can_write(pages_.html);
  for (const OtherPlan& other : other_plans(pages_, arguments_)) others_.push_back(mapped(other));
  own_.html = pages_.html;
  own_.others = others_;
  if (train::is_seq2seq(own_.rest)) return plan_text(own_);
  auto config = this->config();
  if (config && config->vae) return plan_vae_training(std::move(*config), own_);
  Found found = find(std::move(config));
  const train::PreparedRun* run = found.run ? &*found.run : nullptr;
  if (const auto* refusal = std::get_if<Refusal>(&found.outcome)) {
    fail_refused(
        found.title, found.request, *refusal, std::move(found.known),
        [&] { return changes(found, *refusal); }, output(),
        run ? std::span<const std::string>(run->notes) : std::span<const std::string>());
  }
  const auto& planned = std::get<fit::PlannedRun>(found.outcome);
  show_plan(found.title, found.request, planned, train::view_of(found.request, planned, run),
            output());
  if (!machine_.json && !own_.json) print(others_table(others_));
}

// Of a training run: it says all but the machine.
std::optional<train::TrainConfig> Plan::config() const {
  if (own_.rest.empty()) return std::nullopt;
  train::TrainConfig config = train::read_config(own_.rest);
  apply(own_, config.memory);
  // As the ranks that `train` starts share the processors.
  if (config.parallel.ranks > 1 && config.memory.threads == 0 && own_.target == "this") {
    config.memory.threads =
        std::max(1, usable_cpus(read_machine()) / static_cast<int>(config.parallel.ranks));
  }
  return config;
}

Plan::Found Plan::find(std::optional<train::TrainConfig> config) {
  Found f;
  if (!config) {
    f.request = request();
    f.title = title(f.request);
  } else {
    const train::RunTarget target = find_target(own_.target, config->memory);
    f.run = train::prepare_run(std::move(*config), target, train::Purpose::plan);
    f.request = f.run->request;
    f.title = train::title_of(*f.run);
  }
  f.outcome = fit::find_plan(f.request, f.known);
  return f;
}

bool Plan::takes(const std::vector<std::string>& arguments) {
  // --model is a flag of the flow-matching trainer, too.
  arguments_ = take_page_flags(arguments, pages_);
  const bool training = train::names_a_run(arguments_);
  const bool flags_only = std::ranges::any_of(arguments_, [&](const std::string& a) {
    return !training && (a == "--model" || a.starts_with("--model="));
  });
  // Values of these begin with dashes, which main() takes for options.
  if (flags_only && !(pages_.versus.empty() && pages_.grid.empty())) {
    parse(arguments_);
    return true;
  }
  if (flags_only || arguments_.empty()) return false;
  own_ = split_own_flags(arguments_);
  return true;
}

}  // namespace
}  // namespace ballast
