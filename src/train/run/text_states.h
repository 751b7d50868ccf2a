#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "infer/model_folder.h"
#include "infer/text_encoder.h"

namespace ballast::train {

// States of prompts, encoded once and kept as files: <folder>/<hash>.safetensors with the tensor
// `embeddings` [tokens, width] f32 and the prompt in the metadata.
class TextStates {
 public:
  // encoder: what made them; prompts of another encoder have other files.
  TextStates(std::string folder, std::string encoder, std::int64_t width);

  const std::string& folder() const { return folder_; }
  bool has(const std::string& prompt) const;
  void put(const std::string& prompt, const infer::TextStates& states) const;
  // Fills `to` from its beginning, zeros behind the prompt's end; returns its tokens. What does not
  // fit is cut. Fails with ErrorCode::input where the file is not that of the prompt.
  std::int64_t read(const std::string& prompt, std::span<float> to) const;

 private:
  std::string path_of(const std::string& prompt) const;

  std::string folder_, encoder_;
  std::int64_t width_;
};

// Encodes prompts [0, count) that have no states yet, in a phase of its own: the encoder is planned
// within the options' budget and gone when this returns. most: tokens of a prompt.
// Fails with ErrorCode::input where the model's files have no encoder and one is needed.
void encode_missing(const TextStates& states, std::int64_t count,
                    const std::function<std::string(std::int64_t)>& prompt,
                    const infer::ModelFiles& files, std::int64_t most,
                    const infer::TextEncoderOptions& options);

}  // namespace ballast::train
