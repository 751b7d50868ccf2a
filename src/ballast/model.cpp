#include <optional>

#include "ballast/ballast.h"
#include "ballast/session.h"
#include "ballast/settings.h"
#include "ballast/translate.h"
#include "memory/process_memory.h"
#include "train/run/run_plan.h"

namespace ballast::v1 {

using library::translated;

struct Model::State {
  train::PreparedRun run;
  ModelInfo info;
  library::Settings settings;
  std::optional<Plan> plan;  // of the settings as they are
  std::unique_ptr<library::Session> session;

  // Settings are fixed once memory was laid out for them.
  void change(const char* what) {
    if (session) {
      fail(::ballast::ErrorCode::usage,
           fmt::format("{}: the model is loaded, its settings are fixed", what),
           {{"save_checkpoint(), and load_checkpoint() into a new object",
             "continues with other memory settings, to the bit"}});
    }
    plan.reset();
  }

  // The plan and, when it fits, what to run.
  std::optional<fit::PlannedRun> make_plan() {
    library::apply(settings, run);
    auto outcome = fit::find_plan(run.request);
    if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
      plan = library::refused(run, *refusal, library::setting_changes(settings, run, *refusal));
      return std::nullopt;
    }
    auto& planned = std::get<fit::PlannedRun>(outcome);
    plan = library::accepted(run, planned);
    return std::move(planned);
  }

  library::Session& started() {
    if (session) return *session;
    std::optional<fit::PlannedRun> planned = make_plan();
    if (!planned) {
      throw Error(ErrorCode::refused, plan->text, {}, plan->advice);
    }
    session = std::make_unique<library::Session>(run, std::move(*planned),
                                                 library::settings_hash(settings));
    return *session;
  }
};

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::open(const std::string& path) {
  return translated([&] {
    auto state = std::make_unique<State>();
    state->run = library::open_run(path);
    state->info = library::info_of(state->run);
    return Model(std::move(state));
  });
}

const ModelInfo& Model::info() const { return state_->info; }

void Model::enable_gradient_checkpointing() {
  translated([&] { state_->change("enable_gradient_checkpointing()"); });
  state_->settings.checkpointing = fit::Choice::on;
}

void Model::disable_gradient_checkpointing() {
  translated([&] { state_->change("disable_gradient_checkpointing()"); });
  state_->settings.checkpointing = fit::Choice::off;
}

void Model::enable_offloading() {
  translated([&] { state_->change("enable_offloading()"); });
  state_->settings.offloading = fit::Choice::on;
}

void Model::disable_offloading() {
  translated([&] { state_->change("disable_offloading()"); });
  state_->settings.offloading = fit::Choice::off;
}

void Model::leave_memory_to_the_planner() {
  translated([&] { state_->change("leave_memory_to_the_planner()"); });
  state_->settings.checkpointing = state_->settings.offloading = fit::Choice::automatic;
}

void Model::set_budget(const Budget& budget) {
  translated([&] { state_->change("set_budget()"); });
  const auto bytes = [](const std::optional<std::uint64_t>& n) {
    return n ? std::optional(Bytes{*n}) : std::nullopt;
  };
  MachineOptions& machine = state_->settings.machine;
  machine.gpu = bytes(budget.gpu);
  machine.ram = bytes(budget.ram);
  machine.disk = bytes(budget.disk);
}

void Model::set_threads(int threads) {
  translated([&] {
    state_->change("set_threads()");
    if (threads < 0 || threads > 4096) {
      fail(::ballast::ErrorCode::usage,
           fmt::format("set_threads({}): expected 0 (all) to 4096", threads));
    }
  });
  state_->settings.machine.threads = threads;
}

void Model::set_device(Device device, bool deterministic) {
  translated([&] { state_->change("set_device()"); });
  MachineOptions& machine = state_->settings.machine;
  machine.device = device == Device::cpu    ? DeviceChoice::cpu
                   : device == Device::cuda ? DeviceChoice::cuda
                                            : DeviceChoice::automatic;
  machine.deterministic = deterministic;
}

void Model::set_training(const TrainingOptions& options) {
  translated([&] {
    state_->change("set_training()");
    library::check_training(options, state_->run.model());
  });
  state_->settings.training = options;
}

void Model::set_batches(std::vector<Batch> batches) {
  translated([&] {
    state_->change("set_batches()");
    library::check_batches(batches);
  });
  state_->settings.batches = std::move(batches);
}

Plan Model::plan() {
  return translated([&] {
    if (!state_->plan) state_->make_plan();
    return *state_->plan;
  });
}

void Model::start() {
  translated([&] { state_->started(); });
}

bool Model::started() const { return state_->session != nullptr; }

StepResult Model::step(std::span<const Sample> samples) {
  return translated(
      [&] { return state_->started().step(samples, state_->settings.training.learning_rate); });
}

void Model::set_learning_rate(double rate) {
  translated([&] {
    TrainingOptions with = state_->settings.training;
    with.learning_rate = rate;
    library::check_training(with, state_->run.model());
  });
  state_->settings.training.learning_rate = rate;
}

std::int64_t Model::steps() const { return state_->session ? state_->session->steps() : 0; }

void Model::predict(const Sample& sample, double model_time, std::span<float> out) {
  translated([&] { state_->started().predict(sample, model_time, out); });
}

namespace {

DType dtype_of(SaveType t) {
  return t == SaveType::f32 ? DType::f32 : t == SaveType::f16 ? DType::f16 : DType::bf16;
}

train::LoraFormat format_of(LoraFormat f) {
  return f == LoraFormat::kohya  ? train::LoraFormat::kohya
         : f == LoraFormat::peft ? train::LoraFormat::peft
                                 : train::LoraFormat::comfy;
}

void require(Method is, Method needed, const char* call, const char* method) {
  if (is == needed) return;
  fail(::ballast::ErrorCode::usage, fmt::format("{} needs {}", call, method));
}

}  // namespace

void Model::save_lora(const std::string& path, LoraFormat format, SaveType type) {
  translated([&] {
    require(state_->settings.training.method, Method::lora, "save_lora()", "Method::lora");
    library::Session& session = state_->started();
    state_->run.config.lora_format = format_of(format);
    state_->run.config.save_dtype = dtype_of(type);
    session.save(path);
  });
}

void Model::save_model(const std::string& path, SaveType type) {
  translated([&] {
    require(state_->settings.training.method, Method::full, "save_model()", "Method::full");
    library::Session& session = state_->started();
    state_->run.config.save_dtype = dtype_of(type);
    session.save(path);
  });
}

std::string Model::save_checkpoint(const std::string& folder, int keep) {
  return translated([&] { return state_->started().save_checkpoint(folder, keep); });
}

bool Model::load_checkpoint(const std::string& folder) {
  return translated([&] { return state_->started().load_checkpoint(folder); });
}

MemoryUse Model::measured() const {
  return translated([&] {
    if (state_->session) return state_->session->measured();
    MemoryUse m;
    if (const auto process = process_memory()) m.ram = process->total().count;
    return m;
  });
}

}  // namespace ballast::v1
