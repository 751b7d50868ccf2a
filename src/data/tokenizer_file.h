#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/tokenizer_model.h"

namespace ballast::data {

// The whole file, at most 64 MiB of it (rule tok.limit). Of a safetensors file the tensor that
// holds a spiece.model (io/weight_file_parts.h).
std::string read_tokenizer_file(const std::string& path);

// How many bytes that are.
std::uint64_t tokenizer_bytes(const std::string& path);

// Whether the file holds tensors, one of which is the tokenizer.
bool is_tensor_file(const std::string& path);

// What a vocabulary may hold; every piece is told to it before it is kept.
class VocabularyLimits {
 public:
  VocabularyLimits(std::string rule, std::string path)
      : rule_(std::move(rule)), path_(std::move(path)) {}
  // Fails for too many or too long pieces, text that is not UTF-8, and scores that are no numbers.
  void add(std::string_view piece, double score, std::uint64_t offset);

 private:
  [[noreturn]] void refuse(const std::string& what, std::uint64_t offset) const;

  std::string rule_, path_;
  std::uint64_t pieces_ = 0, bytes_ = 0;
};

void check_pieces_are_different(const TokenizerModel& model, std::string_view rule,
                                const std::string& path);

}  // namespace ballast::data
