#pragma once

#include <optional>
#include <string>

namespace ballast {

struct ForeignView {
  std::string path;
  bool json = false;
  bool all_tensors = false;
};

// What `ballast inspect` shows of a file whose tensors cannot be used as they lie: GGUF files, and
// PyTorch files with tensors that are not contiguous. nullopt for all others.
std::optional<std::string> inspect_foreign(const ForeignView& view);

}  // namespace ballast
