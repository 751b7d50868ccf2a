#pragma once

#include <string>

#include "report/run_info.h"
#include "train/recipes/seq2seq_run.h"

namespace ballast::train {

// What a fine-tune of an encoder-decoder says of itself in its log, report and checkpoints.
RunInfo run_info(const Seq2SeqRun& run, const fit::PlannedRun& planned, const std::string& command);
// Of what decides its numbers, apart from its texts.
std::string config_hash(const Seq2SeqRun& run);

}  // namespace ballast::train
