#include "ballast/ballast.h"
#include "ballast/settings.h"
#include "ballast/translate.h"
#include "train/config/read_config.h"
#include "train/run/base_merge.h"
#include "train/run/device_choice.h"
#include "train/run/run_plan.h"
#include "train/trainer.h"

namespace ballast::v1 {
namespace {

// Lets exceptions of callbacks through as they are: `translated` would take a std::exception for
// ours.
class Callbacks {
 public:
  explicit Callbacks(const TrainCallbacks& to) : to_(to) {}

  template <class F, class... Args>
  auto call(const F& f, const Args&... args) {
    try {
      return f(args...);
    } catch (...) {
      thrown_ = std::current_exception();
      throw;
    }
  }
  const TrainCallbacks& to() const { return to_; }
  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  const TrainCallbacks& to_;
  std::exception_ptr thrown_;
};

TrainResult run_training(const std::string& config, const std::vector<std::string>& flags,
                         Callbacks& callbacks) {
  std::vector<std::string> arguments = {config};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  train::TrainConfig read = train::read_config(arguments);
  const train::RunTarget target = train::this_machine(read.memory);
  train::PreparedRun run = train::prepare_run(std::move(read), target, train::Purpose::train);
  const TrainCallbacks& to = callbacks.to();
  for (const std::string& note : run.notes) {
    if (to.note) callbacks.call(to.note, note);
  }
  auto outcome = fit::find_plan(run.request);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    const Plan plan = library::refused(run, *refusal, possible_changes(run, *refusal));
    if (to.planned) callbacks.call(to.planned, plan);
    throw Error(ErrorCode::refused, plan.text, {}, plan.advice);
  }
  auto& planned = std::get<fit::PlannedRun>(outcome);
  if (to.planned) callbacks.call(to.planned, library::accepted(run, planned));
  merge_base_loras(run);

  train::TrainOptions options;
  options.command = "ballast::v1::train " + config;
  for (const std::string& f : flags) options.command += " " + f;
  options.handle_signals = to.handle_signals;
  if (to.step) {
    options.on_step = [&, total = run.total_steps](const StepRecord& r) {
      callbacks.call(to.step, TrainStep{.step = r.step,
                                        .total_steps = total,
                                        .epoch = r.epoch,
                                        .loss = r.loss,
                                        .learning_rate = r.lr,
                                        .grad_norm = r.grad_norm,
                                        .seconds = r.seconds,
                                        .planned = library::public_memory(r.planned),
                                        .measured = library::public_memory(r.measured)});
    };
  }
  if (to.stop) options.stop = [&] { return callbacks.call(to.stop); };
  const train::TrainOutcome done = train::train(std::move(run), std::move(planned), options);
  return {.folder = done.folder,
          .report = done.report,
          .steps = done.steps,
          .last_loss = done.last_loss,
          .stopped = done.stopped,
          .planned_ram = done.planned.count,
          .measured_ram = done.measured.count};
}

}  // namespace

TrainResult train(const std::string& config, const TrainCallbacks& callbacks,
                  const std::vector<std::string>& flags) {
  Callbacks called(callbacks);
  try {
    return library::translated([&] { return run_training(config, flags, called); });
  } catch (...) {
    called.rethrow();
    throw;
  }
}

}  // namespace ballast::v1
