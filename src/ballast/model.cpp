#include <cstdlib>
#include <filesystem>
#include <optional>

#include "ballast/ballast.h"
#include "ballast/session.h"
#include "ballast/settings.h"
#include "ballast/translate.h"
#include "memory/disk_file.h"
#include "memory/process_memory.h"
#include "plan/already_held.h"
#include "train/run/run_plan.h"

namespace ballast::v1 {

using library::translated;

namespace {

// A folder that is gone with its content unless it is kept.
class WaitingFolder {
 public:
  WaitingFolder()
      : path_((std::filesystem::temp_directory_path() / "ballast-model-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) fail_io(path_, "make a temporary folder", errno);
  }
  ~WaitingFolder() {
    std::error_code ignored;
    if (!kept_) std::filesystem::remove_all(path_, ignored);
  }
  WaitingFolder(const WaitingFolder&) = delete;
  WaitingFolder& operator=(const WaitingFolder&) = delete;

  const std::string& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::string path_;
  bool kept_ = false;
};

}  // namespace

struct Model::State {
  train::PreparedRun run;
  ModelInfo info;
  library::Settings settings;
  std::optional<Plan> plan;  // of the settings as they are
  std::unique_ptr<library::Session> session;
  bool switched = false;  // since the session began

  // Training options are fixed once there is a state that they led to.
  void change_training(const char* what) {
    if (session) {
      fail(::ballast::ErrorCode::usage,
           fmt::format("{}: the model is loaded, how it is trained is fixed", what),
           {{"save_checkpoint() or save_lora(), and a new object",
             "starts with other training options"}});
    }
    plan.reset();
  }
  void change() {
    plan.reset();
    switched = session != nullptr;
  }

  // The plan and, when it fits, what to run.
  std::optional<fit::PlannedRun> make_plan() {
    measure_already_held(session ? session->own_ram() : Bytes{});
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
    if (session && !switched) return *session;
    std::optional<fit::PlannedRun> planned = make_plan();
    if (!planned) {
      throw Error(ErrorCode::refused, plan->text, {}, plan->advice);
    }
    if (session && session->same_as(*planned, run.request)) {
      switched = false;
      return *session;
    }
    if (session) {
      reload(std::move(*planned));
    } else {
      session = load(std::move(*planned));
    }
    return *session;
  }

 private:
  std::unique_ptr<library::Session> load(fit::PlannedRun planned) {
    return std::make_unique<library::Session>(run, std::move(planned),
                                              library::settings_hash(settings));
  }

  // Under another plan, with the state as it is. Both do not exist in memory at once.
  void reload(fit::PlannedRun planned) {
    WaitingFolder folder;
    const bool trains = settings.training.method != Method::predict_only;
    if (trains) session->save_checkpoint(folder.path(), 1);
    session.reset();
    switched = false;
    try {
      session = load(std::move(planned));
      if (trains) session->load_checkpoint(folder.path());
    } catch (const ::ballast::Error& e) {
      session.reset();
      if (!trains) throw;
      folder.keep();
      std::vector<::ballast::Advice> advice = e.advice();
      advice.push_back({fmt::format("load_checkpoint(\"{}\")", folder.path()),
                        "continues with what was trained: it was saved there"});
      throw ::ballast::Error(e.code(), e.what(), std::move(advice));
    }
  }
};

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::open(const std::string& path) {
  return translated([&] {
    measure_already_held();
    auto state = std::make_unique<State>();
    state->run = library::open_run(path);
    state->info = library::info_of(state->run);
    return Model(std::move(state));
  });
}

const ModelInfo& Model::info() const { return state_->info; }

void Model::enable_gradient_checkpointing() {
  state_->change();
  state_->settings.checkpointing = fit::Choice::on;
}

void Model::disable_gradient_checkpointing() {
  state_->change();
  state_->settings.checkpointing = fit::Choice::off;
}

void Model::enable_offloading() {
  state_->change();
  state_->settings.offloading = fit::Choice::on;
}

void Model::disable_offloading() {
  state_->change();
  state_->settings.offloading = fit::Choice::off;
}

void Model::leave_memory_to_the_planner() {
  state_->change();
  state_->settings.checkpointing = state_->settings.offloading = fit::Choice::automatic;
}

void Model::set_budget(const Budget& budget) {
  state_->change();
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
    if (threads < 0 || threads > 4096) {
      fail(::ballast::ErrorCode::usage,
           fmt::format("set_threads({}): expected 0 (all) to 4096", threads));
    }
  });
  state_->settings.machine.threads = threads;
  state_->change();
}

void Model::set_device(Device device, bool deterministic) {
  state_->change();
  MachineOptions& machine = state_->settings.machine;
  machine.device = device == Device::cpu    ? DeviceChoice::cpu
                   : device == Device::cuda ? DeviceChoice::cuda
                                            : DeviceChoice::automatic;
  machine.deterministic = deterministic;
}

void Model::set_training(const TrainingOptions& options) {
  translated([&] {
    state_->change_training("set_training()");
    library::check_training(options, state_->run.model());
  });
  state_->settings.training = options;
}

void Model::set_batches(std::vector<Batch> batches) {
  translated([&] { library::check_batches(batches); });
  state_->settings.batches = std::move(batches);
  state_->change();
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

namespace {

Array array_of(std::span<const float> values) {
  return {.data = values.data(), .values = values.size()};
}

ArraySample arrays_of(const Sample& s) {
  return {.size = s.size,
          .latent = array_of(s.latent),
          .conditioning = array_of(s.conditioning),
          .text = array_of(s.text),
          .t = s.t};
}

}  // namespace

StepResult Model::step(std::span<const Sample> samples) {
  std::vector<ArraySample> arrays;
  for (const Sample& s : samples) arrays.push_back(arrays_of(s));
  return step_arrays(arrays);
}

StepResult Model::step_arrays(std::span<const ArraySample> samples) {
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
  predict_arrays(arrays_of(sample), model_time, {.data = out.data(), .values = out.size()});
}

void Model::predict_arrays(const ArraySample& sample, double model_time, const MutableArray& out) {
  translated([&] { state_->started().predict(sample, model_time, out); });
}

namespace {

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
    state_->run.config.save_dtype = library::dtype_of(type);
    session.save(path);
  });
}

void Model::save_model(const std::string& path, SaveType type) {
  translated([&] {
    require(state_->settings.training.method, Method::full, "save_model()", "Method::full");
    library::Session& session = state_->started();
    state_->run.config.save_dtype = library::dtype_of(type);
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
