#include "train/recipes/seq2seq_summary.h"

#include "core/random.h"
#include "io/toml_table.h"
#include "report/secrets.h"
#include "train/run/run_summary.h"

namespace ballast::train {
namespace {

std::string optimizer_text(const Seq2SeqRun& run) {
  const t5::Seq2SeqJob& job = t5::job_of(run.request).seq2seq;
  std::string text(name_of(job.optimizer.kind));
  if (!is_8bit(job.optimizer.kind) || job.lora) return text;
  const bool wide = job.embedding_moments == MomentBits::always_32;
  return text + (wide ? ", 32-bit moments of embeddings" : ", 8-bit moments of embeddings as well");
}

}  // namespace

RunInfo run_info(const Seq2SeqRun& run, const fit::PlannedRun& planned,
                 const std::string& command) {
  const Seq2SeqConfig& c = run.config;
  RunInfo info = common_info(run.request, planned, run.total_steps, run.notes);
  info.title = run.title;
  info.command = command;
  info.summary = {
      {"model", run.checkpoints[0].path()},
      {"texts", fmt::format("{} pairs of {}", run.train->cache.samples(), c.train_file)},
      {"steps", fmt::format("{}, {} per epoch", run.total_steps, run.steps_per_epoch)},
      {"samples per step", run.shapes},
      {"optimizer", optimizer_text(run)},
      {"learning rate",
       fmt::format("{:g}, {}", run.schedule.learning_rate, name_of(run.schedule.kind))},
      {"dropout", fmt::format("{:g}", t5::job_of(run.request).seq2seq.dropout)},
      {"seed", std::to_string(c.seed)},
      {"policy", planned.policy.name}};
  if (c.lora) {
    info.summary.push_back({"adapter", fmt::format("rank {}, alpha {:g}, dropout {:g}",
                                                   c.lora->rank, c.lora->alpha, c.lora->dropout)});
  }
  if (!c.source.empty()) info.config = hide_secrets(TomlFile::read(c.source).text());
  return info;
}

std::string config_hash(const Seq2SeqRun& run) {
  const Seq2SeqConfig& c = run.config;
  std::string text = fmt::format("{}|{}|{}|{}|{}|{}|{}|{}", c.batch_size, c.accumulation,
                                 c.group_by_length, static_cast<int>(c.loss_mean), c.max_grad_norm,
                                 t5::job_of(run.request).seq2seq.dropout,
                                 run.schedule.learning_rate, run.total_steps);
  if (c.lora) text += fmt::format("|{}|{}|{}", c.lora->rank, c.lora->alpha, c.lora->dropout);
  return fmt::format("{:016x}", hash_of(text));
}

}  // namespace ballast::train
