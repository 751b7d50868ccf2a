#include "train/run/model_parts.h"

#include <filesystem>

#include "core/error.h"
#include "core/path_kind.h"
#include "io/weight_file_parts.h"
#include "models/wan_vae/latent_statistics.h"

namespace ballast::train {
namespace {

namespace fs = std::filesystem;

bool has_tokenizer(const fs::path& folder) {
  return path_exists(folder / "tokenizer.json") || path_exists(folder / "spiece.model");
}

}  // namespace

infer::ModelFiles parts_of(const TrainConfig& c) {
  infer::ModelFiles parts;
  parts.vae = c.caching.vae;
  parts.text_encoder = c.caching.text_encoder;
  parts.tokenizer = c.caching.tokenizer;
  std::error_code error;
  const bool searched =
      fs::is_directory(c.model.checkpoint, error) || parts_in_file(c.model.checkpoint).several();
  if (searched && (parts.vae.empty() || parts.text_encoder.empty() || parts.tokenizer.empty())) {
    const infer::ModelFiles found =
        c.model.transformer.empty()
            ? infer::find_model_files(c.model.checkpoint)
            : infer::find_other_parts(c.model.checkpoint, c.model.transformer);
    if (parts.vae.empty()) parts.vae = found.vae, parts.vae_choices = found.vae_choices;
    if (parts.text_encoder.empty()) {
      parts.text_encoder = found.text_encoder;
      parts.text_encoder_choices = found.text_encoder_choices;
    }
    if (parts.tokenizer.empty()) parts.tokenizer = found.tokenizer;
  }
  if (parts.tokenizer.empty() && !parts.text_encoder.empty()) {
    // Beside the encoder, or beside its folder as diffusers has it.
    const fs::path encoder = fs::absolute(parts.text_encoder, error);
    for (const fs::path& at : {encoder, encoder.parent_path(), encoder.parent_path() / "tokenizer",
                               encoder.parent_path() / "google" / "umt5-xxl"}) {
      if (parts.tokenizer.empty() && has_tokenizer(at)) parts.tokenizer = at.string();
    }
    if (parts.tokenizer.empty()) parts.tokenizer = infer::stored_tokenizer(parts.text_encoder);
  }
  return parts;
}

void use_vae_statistics(const std::string& vae, data::DatasetRequest& request) {
  request.any_statistics = vae.empty();
  const std::string config = vae.empty() ? "" : vae_config_json(vae);
  if (config.empty()) return;
  request.needs.statistics = wan_vae::read_own_statistics(config, request.needs.latent_channels);
}

std::string available_vae(const TrainConfig& c) {
  try {
    const std::string vae = parts_of(c).vae;
    return path_exists(vae) ? vae : "";
  } catch (const Error&) {
    return "";  // a folder that holds too much to choose from: such a run names its transformer
  }
}

}  // namespace ballast::train
