#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "infer/text_encoder.h"
#include "models/wan/config.h"

namespace ballast::train {

// Prompts to text states.
class PromptPart {
 public:
  // Texts are cleaned and cut as Wan does it. Fails where the tokenizer, the encoder and the
  // transformer do not fit together.
  PromptPart(const std::string& encoder, const std::string& tokenizer,
             const std::vector<std::string>& texts, const wan::Config& model,
             infer::TextEncoderOptions options);

  infer::CommandPart part() const;              // to be planned
  std::vector<std::vector<float>> run() const;  // rows of text_dim, by text
  std::size_t texts() const { return ids_.size(); }
  std::int64_t tokens() const;  // of all texts

 private:
  infer::TextEncoder encoder_;
  std::vector<std::vector<std::int32_t>> ids_;
};

}  // namespace ballast::train
