#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/name_index.h"
#include "io/tensor_names.h"

namespace ballast::wan {

enum class Dialect {
  official,   // the names of the published model, as Ballast uses them
  comfy,      // the same names, with a prefix or with fp8 scales in ComfyUI's manner
  diffusers,  // renamed modules
};

std::string_view name_of(Dialect dialect);

// Names of modules and of their tensors, both ways: "blocks.3.norm3.bias" is "blocks.3.norm2.bias"
// in diffusers. What follows the module (".weight", ".lora_A.weight", nothing) is kept. nullopt for
// names that the model does not have.
std::optional<std::string> diffusers_name(std::string_view official);
std::optional<std::string> official_name(std::string_view diffusers);

// Whether this is the official name of a module, with nothing behind it.
bool is_module(std::string_view official);

struct WanTensor {
  std::string name;  // official
  NamedTensor source;
};

// The tensors of a checkpoint under their official names, whatever dialect the files use.
class TensorMap {
 public:
  // The checkpoint must outlive the map. Beyond read_tensor_names() this refuses (names.mixed) a
  // checkpoint in which both dialects occur.
  explicit TensorMap(const WeightFiles& checkpoint);

  Dialect dialect() const { return dialect_; }
  const std::string& prefix() const { return prefix_; }
  std::span<const WanTensor> tensors() const { return tensors_; }
  const WanTensor* find(std::string_view official) const;
  // Names in the files that mean nothing here: outside the prefix and of no other part
  // (io/weight_file_parts.h), or unknown to the diffusers table.
  std::span<const std::string> unknown() const { return unknown_; }

  struct Difference {
    std::vector<std::string> missing;  // expected, not in the checkpoint
    std::vector<std::string> unused;   // in the checkpoint, not expected; unknown() included
  };
  Difference compare(std::span<const std::string> expected) const;

 private:
  Dialect dialect_ = Dialect::official;
  std::string prefix_;
  std::vector<WanTensor> tensors_;
  std::vector<std::string> unknown_;
  NameIndex index_;
};

}  // namespace ballast::wan
