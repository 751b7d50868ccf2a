#pragma once

#include <span>
#include <string>

#include "models/wan/config.h"
#include "models/wan/names.h"
#include "train/checkpoint/checkpoint.h"

namespace ballast::train {

// How a full fine-tune is written: as the model that it began with, so that the same programs load
// it.
struct ModelLayout {
  enum class Kind : std::uint8_t {
    official,   // one file with the official names; config.json beside it, where the model had one
    diffusers,  // a folder for WanTransformer3DModel.from_pretrained()
    pipeline,   // a folder for WanPipeline.from_pretrained(): all components, one of them trained
  };
  Kind kind = Kind::official;
  std::string config;     // config.json of the transformer; "": there is none
  std::string pipeline;   // folder with model_index.json
  std::string component;  // "transformer" or "transformer_2"
};

// By the names of the transformer's tensors and the folder that it is in. config_json: that
// describes the transformer; "": none is known.
ModelLayout layout_of(const std::string& transformer, wan::Dialect names,
                      const std::string& config_json);

// Beside `file`: config.json, where the model had one. own_folder: no other model is there, so the
// file also gets the name that the official WanModel.from_pretrained() looks for, as a hard link.
void add_official_files(const ModelLayout& layout, const std::string& file, bool own_folder);

// Tensors have official names. Weights of more than 10 GB become shards. Other components of a
// pipeline are shared with the folder they come from (io/shared_files.h): they take no space.
void write_diffusers(const ModelLayout& layout, const wan::Config& sizes,
                     std::span<const SavedTensor> tensors, const Metadata& metadata,
                     const std::string& folder);

}  // namespace ballast::train
