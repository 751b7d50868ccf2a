#pragma once

#include <string>

#include "app/planning.h"

namespace ballast {

// What commands do with a configuration that trains a VAE (TrainConfig::vae).

void plan_vae_training(train::TrainConfig config, const OwnFlags& own);
void train_vae(train::TrainConfig config, const OwnFlags& own, const std::string& command);
// Reads the dataset's clips once and keeps them as training wants them.
void cache_clips(const train::TrainConfig& config, const OwnFlags& own);

}  // namespace ballast
