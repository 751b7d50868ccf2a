#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ballast::student {

// The image student of WanDistiller ("WanLiteStudent"), as its JSON names the sizes.
struct Config {
  std::int64_t hidden_size = 1024;  // C
  std::int64_t depth = 16;
  std::int64_t num_heads = 16;
  std::int64_t num_channels = 4;  // of its latent
  std::int64_t image_size = 1024;
  std::int64_t patch_size = 16;        // sets the grid and nothing else
  std::int64_t text_max_length = 77;   // kept for the file; the network does not use it
  std::int64_t text_dim = 4096;        // text_encoder_output_dim
  double projection_factor = 1.0;      // kept for the file
  std::int64_t teacher_channels = 16;  // of what the loss compares; not in the file

  std::int64_t grid() const { return image_size / patch_size; }
  std::int64_t tokens() const { return grid() * grid(); }  // L
  std::int64_t head_dim() const { return hidden_size / num_heads; }
  // Whether the output goes through a trained projection to the teacher's channels.
  bool projects() const { return num_channels != teacher_channels; }

  friend bool operator==(const Config&, const Config&) = default;
};

// Fails with ErrorCode::input, naming the field, when sizes contradict each other or are absurd.
void validate(const Config& c);

// All fields but model_type and projection_factor are required. An unknown key is an error with the
// nearest known name, except those that saved files have ("_class_name", "_diffusers_version").
Config parse_config(std::string_view json, const std::string& path);
Config read_config(const std::string& path);

// The text of config.json beside saved weights: the keys above, _class_name, _diffusers_version.
std::string config_text(const Config& c);

}  // namespace ballast::student
