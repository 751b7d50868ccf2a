#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "memory/disk_file.h"

namespace ballast::train {

// A text file with a prompt on each line; blank lines do not count. Only where lines are is kept,
// sixteen bytes for each; a prompt is read when it is asked for.
class PromptFile {
 public:
  // Fails with ErrorCode::input where there is no prompt, one is longer than 64 KiB, or the file is
  // not UTF-8 text.
  explicit PromptFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  std::int64_t count() const { return static_cast<std::int64_t>(lines_.size()); }
  std::string at(std::int64_t prompt) const;  // without white space around it
  Bytes bytes() const { return {lines_.capacity() * sizeof(Line)}; }

 private:
  struct Line {
    std::uint64_t offset = 0, bytes = 0;
  };
  DiskFile file_;
  std::vector<Line> lines_;
};

// The prompt of sample `number` of a run: every epoch goes through all prompts in an order of its
// own, which depends on the seed alone. Batches go on across the end of an epoch.
std::int64_t prompt_of(std::int64_t prompts, std::uint64_t seed, std::int64_t number);

}  // namespace ballast::train
