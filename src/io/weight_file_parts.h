#pragma once

#include <string>
#include <string_view>

#include "io/weight_files.h"

namespace ballast {

// One-file checkpoints as ComfyUI writes them: the transformer's tensors begin with
// "model.diffusion_model.", beside them are those of
//   the VAE             "first_stage_model." or "vae."
//   the text encoder    "text_encoders.X.transformer."
// and the tokenizer, "text_encoders.spiece_model". A text encoder's own file has the last one too,
// as "spiece_model".
enum class ModelPart { vae, text_encoder };

struct PartsInFile {
  bool transformer = false, vae = false, text_encoder = false, tokenizer = false;

  bool several() const { return transformer && (vae || text_encoder); }
};
PartsInFile parts_in(const WeightFiles& checkpoint);

// By the header of a safetensors file; of every other file and of a folder: none.
PartsInFile parts_in_file(const std::string& path);

// Whether a tensor of a one-file checkpoint belongs to something other than the transformer.
bool is_of_another_part(std::string_view tensor);

// The part alone, its names without what is in front of them. A checkpoint that has no such part
// is opened as it is.
WeightFiles open_part(const std::string& path, ModelPart part, DiskMode mode = DiskMode::automatic);

// The tensor that holds a spiece.model: bytes, U8. nullptr: there is none.
const SafetensorsEntry* find_stored_tokenizer(const SafetensorsFile& file);

}  // namespace ballast
