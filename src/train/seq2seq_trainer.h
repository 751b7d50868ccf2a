#pragma once

#include "train/seq2seq_run.h"
#include "train/trainer.h"

namespace ballast::train {

// Runs what was planned, from the beginning or from a checkpoint, to its end or
// to a signal. In config.output_dir are then
//   checkpoint-N/               model.safetensors, config.json and tokenizer,
//   as transformers reads
//                               them, and state.safetensors with what the
//                               optimizer keeps
//   model.safetensors, config.json, tokenizer ...   the trained model, when
//   training is over run_log.jsonl, report.html, events...           records
// Same promises as train() in train/trainer.h.
TrainOutcome train_seq2seq(Seq2SeqRun run, t5::PlannedRun planned, const TrainOptions& options);

}  // namespace ballast::train
