#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "nn/machine_options.h"

namespace ballast {

// What `ballast init` decides, and what it was told.
struct InitChoice {
  // As the user named them; local paths are absolute.
  std::string model, data, output;           // output: the folder of both files
  std::string vae, text_encoder, tokenizer;  // "": with the model
  bool both_experts = false;
  double min_t = 0, max_t = 1;                // of one expert of two
  std::int64_t resolution = 512, frames = 1;  // frames 1: images
  std::int64_t rank = 32;
  bool fp8 = false;  // how the frozen weights are kept
  MachineOptions machine;
};

inline constexpr const char *kInitConfig = "train.toml", *kInitDataset = "dataset.toml";

// Any text as a TOML string: in single quotes where that is possible.
std::string toml_string(std::string_view text);

// Both files; `about` is a line or several for the head of the first one, without "# ".
std::string init_config_text(const InitChoice& c, const std::string& about);
std::string init_dataset_text(const InitChoice& c);

}  // namespace ballast
