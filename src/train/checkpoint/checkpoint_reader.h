#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/checksum.h"
#include "io/safetensors_writer.h"
#include "memory/disk_file.h"
#include "train/checkpoint/checkpoint_manifest.h"

namespace ballast::train {

// A file of a training checkpoint, read once and from front to back. The checksum is of the bytes
// that read() and pass() hand out: finish() says whether these are the bytes that were written.
// Fails with ErrorCode::io where the file cannot be read, else with ErrorCode::input.
class CheckpointReader {
 public:
  CheckpointReader(const std::string& folder, CheckpointManifest::File written);

  const std::string& path() const { return file_.path(); }
  std::uint64_t size() const { return file_.size(); }
  std::uint64_t left() const { return file_.size() - at_; }

  void read(std::span<std::byte> to);  // the next bytes
  // The next bytes, a piece at a time; without a sink they only count for the checksum.
  void pass(std::uint64_t bytes, const ByteSink& sink = nullptr);
  // After the last byte. The error names the file and both checksums.
  void finish() const;

 private:
  DiskFile file_;
  CheckpointManifest::File written_;
  Checksum sum_;
  std::uint64_t at_ = 0;
  std::vector<std::byte> piece_;
};

// The whole of a small file (trainer.json).
std::string read_checked_text(const std::string& folder, const CheckpointManifest::File& written);

}  // namespace ballast::train
