#include "app/train_text.h"

#include "app/output.h"
#include "core/error.h"
#include "core/log.h"
#include "train/predicted_texts.h"
#include "train/seq2seq_trainer.h"

namespace ballast {
namespace {

struct PlannedText {
  train::Seq2SeqRun run;
  t5::PlannedRun planned;
};

// Prints the plan, or fails with what would help.
PlannedText planned_text(train::Seq2SeqConfig config, const OwnFlags& own) {
  const train::RunTarget target =
      find_target(own.target, compute_options(config.memory, own.threads));
  PlannedText p = {train::prepare_seq2seq(std::move(config), target), {}};
  auto outcome = t5::fit(p.run.request);
  const PlanTitle title = train::title_of(p.run);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    for (const std::string& note : p.run.notes) log::info("{}", note);
    std::string reason =
        fmt::format("the run does not fit{} {}",
                    p.run.request.policy ? " under policy" : ", not even under", refusal->policy);
    for (const Shortage& s : refusal->shortages) reason += "\n" + describe_shortage(s, title);
    log::info("{}", reason);
    const std::vector<PlannedChange> changes =
        t5::try_changes(p.run.request, *refusal, train::possible_changes(p.run, *refusal));
    if (own.json) print(refusal_json(title, *refusal, changes));
    fail(ErrorCode::refused, train::refusal_message(*refusal), advice_of(changes));
  }
  p.planned = std::get<t5::PlannedRun>(std::move(outcome));
  const PlanView view = train::view_of(p.run, p.planned);
  print(own.json ? plan_json(title, view) : plan_table(title, view));
  return p;
}

void predict(const train::Seq2SeqConfig& c, const std::string& folder,
             const data::TokenCache& texts, const t5::FitRequest& request, int threads) {
  train::PredictionJob job;
  job.model = folder;
  job.output = folder + "/generated_predictions.jsonl";
  job.samples = c.predictions > 0 ? c.predictions : c.max_eval_samples;
  job.options.beams = static_cast<int>(c.beams);
  job.options.max_new_tokens = c.generation_length > 0 ? c.generation_length : c.tokens.max_target;
  job.machine.device = request.backend.device;
  job.machine.budget = request.budget;
  job.machine.threads = threads;
  const train::Predictions all = train::predict_texts(texts, job);
  for (const train::Prediction& p : all.first) {
    log::info("{} -> {} (target: {})", printable(p.input), printable(p.text), printable(p.target));
  }
  print(fmt::format("predictions  {}: {} of {} are the target to the letter\n", job.output,
                    all.exact, all.count));
}

}  // namespace

void plan_text(const OwnFlags& own) {
  train::Seq2SeqConfig config = train::read_seq2seq_config(own.rest);
  config.plan_only = true;
  planned_text(std::move(config), own);
}

void train_text(const OwnFlags& own, const std::string& command) {
  PlannedText p = planned_text(train::read_seq2seq_config(own.rest), own);
  const train::Seq2SeqConfig config = p.run.config;
  if (config.plan_only) return;
  t5::FitRequest machine;
  machine.backend = p.run.request.backend;
  machine.budget = p.run.request.budget;
  const std::string eval_cache = config.predict ? p.run.eval->cache.path() : "";
  const train::TrainOutcome done =
      train::train_seq2seq(std::move(p.run), std::move(p.planned),
                           {.command = command, .check_nan = own.check_nan, .remember = true});
  const std::string gpu = done.planned_gpu.count == 0
                              ? ""
                              : fmt::format("GPU memory: planned {}, measured at most {}\n",
                                            done.planned_gpu, done.measured_gpu);
  print(fmt::format(
      "{} after {} steps, loss {:.5f}\n{}memory: planned {}, "
      "measured at most {}\n"
      "model   {}\nreport  {}\n",
      done.stopped ? "stopped" : "finished", done.steps, done.last_loss, gpu, done.planned,
      done.measured, done.folder, done.report.empty() ? "none" : done.report));
  if (config.predict && !done.stopped) {
    predict(config, done.folder, data::TokenCache::open(eval_cache), machine, own.threads);
  }
}

}  // namespace ballast
