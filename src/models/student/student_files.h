#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/safetensors_writer.h"
#include "models/student/config.h"

namespace ballast::student {

inline constexpr const char* kWeightsFile = "diffusion_pytorch_model.safetensors";
inline constexpr const char* kProjectionFile = "output_proj.safetensors";

// Writes config.json, the weights and, where there is one, the output projection into a folder that
// is there. source(name) gives a tensor's f32 bytes.
void save_student(const std::string& folder, const Config& config,
                  const std::function<ByteSource(const std::string& name)>& source);

// A student's folder, opened: config.json read, names and shapes of all tensors checked. Weights
// may also be called diffusion_model.safetensors or model.safetensors.
class StudentFiles {
 public:
  // Fails with ErrorCode::input where something is missing or does not belong together: the output
  // projection as well, where save_student() wrote the weights and noted that there is one.
  explicit StudentFiles(const std::string& folder);

  const Config& config() const { return config_; }
  std::vector<float> values(const std::string& name) const;  // in f32, whatever the file has

 private:
  std::string folder_;
  Config config_;
  SafetensorsFile weights_;
  std::vector<SafetensorsFile> projection_;  // at most one
};

}  // namespace ballast::student
