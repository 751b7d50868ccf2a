#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/machine_options.h"
#include "train/config/flags.h"
#include "train/run/prompt_part.h"

namespace ballast {

// ballast sample --model_path STUDENT: an image by a distilled student, with the flags of
// WanDistiller's run_inference.
class StudentSample {
 public:
  // Whether the arguments ask for it; then they are read.
  bool takes(const std::vector<std::string>& arguments);
  void run();
  static std::string help();
  std::string flags_help();  // one line for each
  std::vector<train::FlagInfo> flag_infos();

 private:
  train::FlagTable flags(std::vector<std::string>& notes);
  // The prompt, to be encoded; nothing: its states are in a file.
  std::optional<train::PromptPart> prompt_part(const wan::Config& model,
                                               const Budget& budget) const;

  std::string model_path_, teacher_path_, prompt_, cond_, output_path_ = "inference_result.png";
  std::string text_encoder_, tokenizer_, vae_;
  MachineOptions machine_;
  std::int64_t steps_ = 20, seed_ = 0;
};

}  // namespace ballast
