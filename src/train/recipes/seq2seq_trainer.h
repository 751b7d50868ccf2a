#pragma once

#include "train/recipes/seq2seq_run.h"
#include "train/trainer.h"

namespace ballast::train {

// Runs what was planned, from the beginning or from a checkpoint, to its end or to a signal. In
// config.output_dir are then
//   checkpoint-N/   model.safetensors, config.json, tokenizer and trainer_state.json as
//   transformers
//                   has them, and state.safetensors with what the optimizer keeps; with adapters
//                   adapter_model.safetensors and adapter_config.json as PEFT has them
//   the same without state.safetensors: the trained model or adapter, when training is over
//   run_log.jsonl, report.html, events...: records
// Same promises as train() in train/trainer.h (seq2seq_task.cpp).
TrainOutcome train_seq2seq(Seq2SeqRun run, fit::PlannedRun planned, const TrainOptions& options);

}  // namespace ballast::train
