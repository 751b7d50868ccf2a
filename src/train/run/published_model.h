#pragma once

#include <optional>

#include "models/wan/published.h"
#include "train/run/prepared_run.h"

namespace ballast::train {

// The transformer of a run where it is known by its id or preset and not on this machine.
std::optional<wan::Published> absent_model(const ModelConfig& m);

// Fails with ErrorCode::input and the command that downloads it where it is such a one.
void require_downloaded(const ModelConfig& m);

// Plans with the published sizes: the weights of the expert that the configuration chooses, or of
// both, without a file; what was assumed is noted.
Bytes published_bytes(const fit::Request& request);  // of files that such a run will have
wan::Config plan_published(PreparedRun& run, const wan::Published& model);

}  // namespace ballast::train
