#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"
#include "io/file_dtype.h"
#include "io/name_index.h"
#include "memory/disk_file.h"

namespace ballast {

class TorchFile;

// One tensor of a safetensors file: row-major, packed, little-endian. Its offset need not be a
// multiple of its element size.
struct SafetensorsEntry {
  std::string_view name;  // lives as long as the header it came from, also when that is moved
  FileDType dtype = FileDType::f32;
  Shape shape;
  std::uint64_t offset = 0;  // from the start of the file
  std::uint64_t bytes = 0;
};

using Metadata = std::map<std::string, std::string, std::less<>>;

// The validated header: every range lies in the file, none overlap, together they cover the data
// exactly. That of a PyTorch file (io/torch_file.h) lists its tensors in the same way, but there
// two may share their bytes and others lie between them.
class SafetensorsHeader {
 public:
  const std::string& path() const { return path_; }
  std::span<const SafetensorsEntry> entries() const { return entries_; }  // in order of offset
  const SafetensorsEntry* find(std::string_view name) const;              // nullptr when absent
  const Metadata& metadata() const { return metadata_; }
  std::uint64_t data_start() const { return data_start_; }
  std::string_view container() const { return container_; }      // "safetensors" or "PyTorch"
  std::span<const std::string> notes() const { return notes_; }  // odd, but stops no one

 private:
  friend class SafetensorsHeaderParser;
  friend class SafetensorsFile;

  std::string path_;
  std::unique_ptr<char[]> text_;  // most names point into it
  NamePool names_;                // the others
  std::vector<SafetensorsEntry> entries_;
  NameIndex index_;
  Metadata metadata_;
  std::uint64_t data_start_ = 0;
  std::string_view container_ = "safetensors";
  std::vector<std::string> notes_;
};

// The header of a file of `file_size` bytes that starts with `prefix`, which holds at least the
// length and the header or else the whole file; `path` is for messages. What is wrong with the file
// is an Error of ErrorCode::input whose message names the path, the tensor, the byte offset and one
// of these rules, in the order in which they are checked:
//   st.header_too_small  st.header_too_large  st.header_length  st.header_utf8  st.header_json
//   st.duplicate_name  st.limit      while the text is read
//   st.offset  st.overflow  st.misaligned  st.size_mismatch      tensor by tensor in offset order
//   st.trailing  st.truncated
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> prefix,
                                           std::uint64_t file_size, std::string path);

class SafetensorsFile {
 public:
  // Also opens PyTorch files, by their content; pth.strided where a tensor in one is not
  // contiguous.
  static SafetensorsFile open(std::string path, DiskMode mode = DiskMode::automatic);

  const std::string& path() const { return file_.path(); }
  const DiskFile& file() const { return file_; }
  const SafetensorsHeader& header() const { return header_; }
  std::span<const SafetensorsEntry> entries() const { return header_.entries(); }
  const Metadata& metadata() const { return header_.metadata(); }
  const SafetensorsEntry* find(std::string_view name) const { return header_.find(name); }

  // Fails (st.missing) when there is no such tensor.
  const SafetensorsEntry& get(std::string_view name) const;
  // The type to compute with; fails (st.dtype) for types that are only recognised.
  DType dtype(const SafetensorsEntry& entry) const;
  Extent extent(const SafetensorsEntry& entry) const { return {&file_, entry.offset, entry.bytes}; }
  // `to` has exactly entry.bytes.
  void read(const SafetensorsEntry& entry, std::span<std::byte> to,
            PageCache cache = PageCache::keep) const;
  // All numbers, whatever floating-point type they are stored in.
  std::vector<float> floats(const SafetensorsEntry& entry) const;

 private:
  static SafetensorsFile of(TorchFile torch);
  SafetensorsFile(DiskFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  DiskFile file_;
  SafetensorsHeader header_;
};

}  // namespace ballast
