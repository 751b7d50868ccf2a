#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/shape.h"
#include "io/file_dtype.h"
#include "memory/disk_file.h"

namespace ballast {

// A tensor of a torch.save() file: a view on bytes that other tensors may share.
struct TorchTensor {
  std::string name;
  FileDType dtype = FileDType::f32;
  Shape shape;
  Shape strides;             // in elements
  std::uint64_t offset = 0;  // of its first element, from the start of the file
  std::uint64_t bytes = 0;   // elements times their size
  bool contiguous = true;    // row-major and packed: bytes from offset on are the tensor
};

// A .pth, .pt or .bin file of the zip kind (PyTorch 1.6 and later): the state dict in it. Nothing
// in the file is executed. Fails with ErrorCode::input and a rule: pth.format (what kind of file it
// is), pth.zip, pth.compressed, pth.pickle, pth.global, pth.storage, pth.tensor, pth.state_dict,
// pth.limit.
class TorchFile {
 public:
  static TorchFile open(std::string path, DiskMode mode = DiskMode::automatic);
  // Whether the first bytes are those of such a file, or of an older kind that open() refuses.
  static bool is_one(std::span<const std::byte> first);

  const std::string& path() const { return file_.path(); }
  const DiskFile& file() const { return file_; }
  std::span<const TorchTensor> tensors() const { return tensors_; }  // by offset, then name
  // What was left out or is odd, a sentence each.
  std::span<const std::string> notes() const { return notes_; }

  // Elements [first, first + to.size() / element size) in row-major order; `to` holds whole
  // elements. Tensors that are not contiguous are gathered through a buffer of at most
  // 64 MiB.
  void read(const TorchTensor& t, std::uint64_t first, std::span<std::byte> to) const;

  DiskFile release() && { return std::move(file_); }

 private:
  friend class TorchFileReader;
  explicit TorchFile(DiskFile file) : file_(std::move(file)) {}

  DiskFile file_;
  std::vector<TorchTensor> tensors_;
  std::vector<std::string> notes_;
};

}  // namespace ballast
