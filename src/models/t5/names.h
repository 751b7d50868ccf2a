#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tensor_names.h"

namespace ballast::t5 {

enum class Dialect {
  transformers,  // the names that Ballast uses
  comfy,         // the same, with fp8 scales or a tokenizer beside them
  wan,           // those of Wan's text encoder: "blocks.3.attn.q.weight"
};
std::string_view name_of(Dialect dialect);

// The name in transformers of a tensor of Wan's module: of its bare encoder, or of its
// encoder-decoder ("decoder.blocks.0.cross_attn.q.weight"). nullopt for names that it does not
// have.
std::optional<std::string> transformers_name(std::string_view wan);

// The tensors of a checkpoint under their names in transformers, whatever dialect the files use.
// The embedding table is "shared.weight" under whichever of its three names it is stored.
class TensorMap {
 public:
  // The checkpoint must outlive the map. Beyond read_tensor_names() this refuses (names.mixed) a
  // checkpoint in which both Wan's and transformers' names of blocks occur.
  explicit TensorMap(const WeightFiles& checkpoint);

  Dialect dialect() const { return dialect_; }
  const NamedTensor* find(std::string_view name) const;
  // Tensors that mean nothing here, by their names in the files.
  const std::vector<std::string>& unknown() const { return unknown_; }
  std::int64_t blocks(std::string_view stack) const;  // of "encoder" or "decoder"

 private:
  Dialect dialect_ = Dialect::transformers;
  std::map<std::string, NamedTensor, std::less<>> tensors_;
  std::vector<std::string> unknown_;
};

}  // namespace ballast::t5
