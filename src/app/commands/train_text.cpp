#include "app/commands/train_text.h"

#include <nlohmann/json.hpp>

#include "app/output.h"
#include "app/training_output.h"
#include "core/error.h"
#include "core/log.h"
#include "train/recipes/predicted_texts.h"
#include "train/recipes/seq2seq_run.h"

namespace ballast {
namespace {

struct PlannedText {
  train::Seq2SeqRun run;
  fit::PlannedRun planned;
};

// Prints the plan, or fails with what would help.
PlannedText planned_text(train::Seq2SeqConfig config, const OwnFlags& own) {
  apply(own, config.memory);
  const train::RunTarget target = find_target(own.target, config.memory);
  PlannedText p = {train::prepare_seq2seq(std::move(config), target), {}};
  auto outcome = train::plan_seq2seq(p.run);
  const PlanTitle title = train::title_of(p.run);
  if (const auto* refusal = std::get_if<Refusal>(&outcome)) {
    fail_refused(
        title, p.run.request, *refusal, {}, [&] { return possible_changes(p.run, *refusal); },
        plan_output(own), p.run.notes);
  }
  p.planned = std::get<fit::PlannedRun>(std::move(outcome));
  show_plan(title, p.run.request, p.planned, train::view_of(p.run, p.planned), plan_output(own));
  return p;
}

// What is predicted when the run is gone.
struct PredictionPlan {
  train::PredictionJob job;
  std::string texts;  // path of the token cache; "": nothing is predicted
};

PredictionPlan prediction_plan(const train::Seq2SeqRun& run, int threads) {
  const train::Seq2SeqConfig& c = run.config;
  PredictionPlan p;
  if (!c.predict) return p;
  p.texts = run.test ? run.test->path() : run.eval->cache.path();
  p.job.model = c.output_dir;
  if (c.lora) p.job.model = run.model_folder, p.job.adapter.folder = c.output_dir;
  p.job.output = c.output_dir + "/generated_predictions.jsonl";
  p.job.samples = c.predictions > 0 ? c.predictions : run.test ? 0 : c.max_eval_samples;
  p.job.options = run.generation();
  p.job.machine.device = run.request.backend.device;
  p.job.machine.budget = run.request.budget;
  p.job.machine.threads = threads;
  if (c.lora) p.job.machine.format = t5::job_of(run.request).seq2seq.format;
  return p;
}

void predict(const PredictionPlan& plan, const PlanOutput& output) {
  const train::Predictions all = train::predict_texts(data::TokenCache::open(plan.texts), plan.job);
  for (const train::Prediction& p : all.first) {
    log::info("{} -> {} (target: {})", printable(p.input), printable(p.text), printable(p.target));
  }
  if (output.json) {
    nlohmann::ordered_json j = {
        {"predictions", plan.job.output}, {"count", all.count}, {"exact", all.exact}};
    train::Rouge::each(all.rouge, [&](const char* name, double value) { j[name] = value; });
    return print_json_line(j.dump(), output.kind("predictions"));
  }
  print(fmt::format("predictions  {}: {} of {} are the target to the letter\n", plan.job.output,
                    all.exact, all.count));
  std::string scores;
  train::Rouge::each(all.rouge, [&](const char* name, double value) {
    scores += fmt::format("  {} {:.4f}", name, value);
  });
  print(fmt::format("scores     {}\n", scores));
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
  const PlanOutput output = plan_output(own);
  const PredictionPlan predictions = prediction_plan(p.run, own.threads);
  const train::TrainOutcome done = train::train_seq2seq(std::move(p.run), std::move(p.planned),
                                                        {.command = command,
                                                         .check_nan = own.check_nan,
                                                         .remember = true,
                                                         .on_record = record_printer(output)});
  if (done.stopped) {
    print_outcome(
        done,
        {{"model", "not saved yet: --resume-from-checkpoint continues"}, {"run", done.folder}},
        output);
    return;
  }
  if (!output.steps) print_outcome(done, {{"model", done.folder}}, output);
  if (!predictions.texts.empty()) predict(predictions, output);
  if (output.steps) print_outcome(done, {{"model", done.folder}}, output);  // the last line
}

}  // namespace ballast
