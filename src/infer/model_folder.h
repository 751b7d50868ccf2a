#pragma once

#include <string>

#include "models/wan/config.h"

namespace ballast::infer {

// The parts of a model where users have them; "" where there is none.
struct ModelFiles {
  std::string transformer;  // the only one, or the low-noise expert
  std::string high_noise;   // the other expert
  std::string vae, text_encoder, tokenizer;
};

// Finds parts by name in
//   the published folders   low_noise_model/, high_noise_model/, or the shards themselves;
//                           Wan2.*_VAE.pth, models_t5_umt5-xxl-enc-bf16.pth, google/umt5-xxl/
//   diffusers' folders      transformer_2/ (low noise) and transformer/, vae/, text_encoder/,
//                           tokenizer/
//   ComfyUI's models folder diffusion_models/ (or unet/), vae/, text_encoders/ (or clip/)
//   a Hugging Face cache    models--*/, in which the snapshot of refs/main is looked into
// or takes a single file, beside which the other expert may stand under the same name with high for
// low. Nothing is opened. Fails with ErrorCode::input where there is no transformer, or several and
// nothing says which.
ModelFiles find_model_files(const std::string& path);

// Where the files of a model are that is named by its place in a Hugging Face cache: the snapshot
// of refs/main, else the only one. Every other path is as it was given; one that is not there fails
// with ErrorCode::io.
std::string model_snapshot(const std::string& path);

// What the publishers steer away from where nothing else is said.
extern const char* const kNegativePrompt;

// What the publishers generate with.
struct GenerationDefaults {
  std::int64_t steps, frames, width, height;
  double shift, low_guidance, high_guidance, boundary, fps;
};
GenerationDefaults generation_defaults(const wan::Config& model, int experts);

}  // namespace ballast::infer
