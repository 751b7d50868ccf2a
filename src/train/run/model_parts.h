#pragma once

#include "data/dataset.h"
#include "infer/model_folder.h"
#include "train/config/config.h"

namespace ballast::train {

// What stands around the transformer of a run: VAE, text encoder, tokenizer. Each where the
// configuration names it, else in the model's folder; the tokenizer also beside the encoder. "":
// there is none.
infer::ModelFiles parts_of(const TrainConfig& config);

// How a dataset's latents are normalised: as the VAE's config.json says, where it has one. vae "":
// nothing is known of it. The request has its latent channels.
void use_vae_statistics(const std::string& vae, data::DatasetRequest& request);
// The VAE of a run that only reads encoded samples; "" where none is found.
std::string available_vae(const TrainConfig& config);

}  // namespace ballast::train
