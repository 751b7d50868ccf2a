#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "io/weight_files.h"

namespace ballast {

struct ForeignView {
  std::string path;
  bool json = false;
  bool all_tensors = false;
};

// What `ballast inspect` shows of a file whose tensors cannot be used as they lie: GGUF files, and
// PyTorch files with tensors that are not contiguous. nullopt for all others.
std::optional<std::string> inspect_foreign(const ForeignView& view);

// By its first bytes; false for what is no file or cannot be read.
bool is_media_file(const std::string& path);

// What `ballast inspect` prints of an image or a video: container, codec, size, rate, frames, and
// what the file says about how it was made.
std::string describe_media(const std::string& path, bool json);

// A file of this size is read in about a second: its values are looked at unasked.
inline constexpr Bytes kReadUnasked{1'000'000'000};

// Reads every tensor once, with progress: a sentence for each that holds NaN or infinity.
std::vector<std::string> problems_of_values(const WeightFiles& checkpoint);

}  // namespace ballast
