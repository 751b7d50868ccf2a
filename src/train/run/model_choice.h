#pragma once

#include <string>
#include <variant>

#include "models/wan/config.h"
#include "train/config/config.h"

namespace ballast::train {

// Between the experts of Wan2.2 A14B.
inline constexpr double kBoundaryT2v = 0.875, kBoundaryI2v = 0.9;

// Which transformer files a run uses.
struct ModelChoice {
  std::string transformer;             // file or folder; the low-noise expert of two
  std::string high_noise_transformer;  // of a run with both experts; else ""
  std::string config_json;             // that describes `transformer`; "": there is none
  Experts experts = Experts::one;
  double boundary = 0;      // between the experts, where the model has two; else 0
  std::string explanation;  // why, where the configuration does not say it itself; else ""
};

// The folder holds two experts and nothing says which one is meant. Both have one shape, so either
// can be planned with.
struct AmbiguousModel {
  ModelChoice low, high;
  std::string low_line, high_line;  // what to write into the configuration, one of them
};

using ModelDecision = std::variant<ModelChoice, AmbiguousModel>;

// Decides from ckpt_path, transformer_path, min_t, max_t and experts: a folder
// with low_noise_model and high_noise_model, or with diffusers' transformer_2 and transformer,
// holds two experts, of which [min_t, max_t) chooses one by lying on its side of the boundary,
// 0.875 for T2V and 0.9 for I2V. Fails with ErrorCode::input where paths are missing or contradict.
ModelDecision resolve_model(const TrainConfig& c);

// The choice; fails with ErrorCode::input and both lines where there is none.
ModelChoice require_model(const TrainConfig& c);

// Fails with ErrorCode::input where the model that `path` holds is not of the kind that the user
// calls it (ModelConfig::task): a text-to-video file for an image-to-video task, or the reverse.
void require_task(const ModelConfig& named, const wan::Config& model, const std::string& path);

// What is stored in c.model and the notes.
void apply(const ModelChoice& choice, TrainConfig& c);

}  // namespace ballast::train
