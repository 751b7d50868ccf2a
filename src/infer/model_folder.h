#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/wan/config.h"

namespace ballast::infer {

// The parts of a model where users have them; "" where there is none.
struct ModelFiles {
  std::string transformer;  // the only one, or the low-noise expert
  std::string high_noise;   // the other expert
  std::string vae, text_encoder, tokenizer;
  // Several that match, where nothing says which; the path is "" then.
  std::vector<std::string> vae_choices = {}, text_encoder_choices = {};
};

// Finds parts by name in
//   the published folders   low_noise_model/, high_noise_model/, or the shards themselves;
//                           Wan2.*_VAE.pth, models_t5_umt5-xxl-enc-bf16.pth, google/umt5-xxl/
//   diffusers' folders      transformer_2/ (low noise) and transformer/, vae/, text_encoder/,
//                           tokenizer/
//   ComfyUI's folder        diffusion_models/ (or unet/), vae/, text_encoders/ (or clip/), in it or
//                           in its models/; one-file checkpoints in checkpoints/
//   the Hugging Face cache  an id, or a folder models--*/ (io/hub_cache.h)
// or takes a single file, beside which the other expert may stand under the same name with high for
// low. A one-file checkpoint is its own VAE and text encoder; without a tokenizer's file the one
// inside the text encoder's is taken: the headers of these files are read, and no others. Fails
// with ErrorCode::input where there is no transformer, or several and nothing says which.
ModelFiles find_model_files(const std::string& path);

// The same without a search for the transformer, which is known.
ModelFiles find_other_parts(const std::string& path, const std::string& transformer);

// Whether this is ComfyUI's folder or its models/.
bool is_comfy_folder(const std::string& path);

// The file or folder that a user names (resolve_model_path()); which snapshot was chosen is logged.
std::string model_path(const std::string& named);

// The same for who cannot go on without: one that is not there fails with ErrorCode::io.
std::string model_snapshot(const std::string& path);

// Whether a folder has the parts of a model in folders, rather than a model itself.
bool holds_parts(const std::string& folder);

// The text encoder's file where it holds the tokenizer, else "".
std::string stored_tokenizer(const std::string& text_encoder);

// Fails with ErrorCode::input and all of them where there are choices: what: "VAE", flag: "--vae
// FILE".
void require_one(const std::vector<std::string>& choices, std::string_view what,
                 std::string_view flag);

// What the publishers steer away from where nothing else is said.
extern const char* const kNegativePrompt;

// What the publishers generate with.
struct GenerationDefaults {
  std::int64_t steps, frames, width, height;
  double shift, low_guidance, high_guidance, boundary, fps;
};
GenerationDefaults generation_defaults(const wan::Config& model, int experts);

}  // namespace ballast::infer
