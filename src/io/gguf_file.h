#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"
#include "io/gguf_blocks.h"
#include "memory/disk_file.h"

namespace ballast {

struct GgufTensor {
  std::string name;
  const GgufType* type = nullptr;
  Shape shape;  // as PyTorch has it: the last dimension varies fastest
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;

  std::uint64_t elements() const { return bytes / type->bytes * type->elements; }
};

inline constexpr std::string_view kGgufMark = "GGUF";  // that every file begins with

// A GGUF file, version 2 or 3: metadata and the places of its tensors, all checked; no tensor data
// is read. Fails with ErrorCode::input and a rule: gguf.format, gguf.version, gguf.metadata,
// gguf.duplicate, gguf.type, gguf.tensor, gguf.offset, gguf.truncated, gguf.split, gguf.limit.
class GgufFile {
 public:
  static GgufFile open(std::string path, DiskMode mode = DiskMode::automatic);
  static bool is_one(std::span<const std::byte> first) {
    return std::string_view(reinterpret_cast<const char*>(first.data()), first.size())
        .starts_with(kGgufMark);
  }

  const std::string& path() const { return file_.path(); }
  const DiskFile& file() const { return file_; }
  std::span<const GgufTensor> tensors() const { return tensors_; }  // by offset
  // Numbers and texts as texts; of arrays type and length.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::span<const std::string> notes() const { return notes_; }

  // Elements [first, first + to.size()) of a quantised, f32, f16 or bf16 tensor as f32; `first` and
  // to.size() are whole blocks.
  void read(const GgufTensor& t, std::uint64_t first, std::span<float> to) const;

 private:
  friend class GgufReader;
  explicit GgufFile(DiskFile file) : file_(std::move(file)) {}

  DiskFile file_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> notes_;
};

}  // namespace ballast
