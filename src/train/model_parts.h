#pragma once

#include "infer/model_folder.h"
#include "train/config.h"

namespace ballast::train {

// What stands around the transformer of a run: VAE, text encoder, tokenizer. Each where the
// configuration names it, else in the model's folder; the tokenizer also beside the encoder. "":
// there is none.
infer::ModelFiles parts_of(const TrainConfig& config);

}  // namespace ballast::train
