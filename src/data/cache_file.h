#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "io/safetensors.h"
#include "memory/disk_file.h"

namespace ballast::data {

// Of the header of one cached sample: a few tensors and a caption. A larger one is refused before
// anything is sized by it.
inline constexpr std::uint64_t kCacheHeaderBytes = 4 << 20;
// Data passes through a buffer of this size on the reader's stack.
inline constexpr std::size_t kCacheChunkBytes = 64 << 10;

// One safetensors file of a cache, open for reading. It is opened anew for every sample and its
// header checked again: a file may vanish, shrink or change while a run goes on. Where the file has
// checksums, every tensor has one, and read() compares it with the bytes it hands out. What is
// wrong with it is an Error of ErrorCode::io (it cannot be read) or ErrorCode::input (it is not
// what it should be) that names the path.
class CacheFile {
 public:
  static CacheFile open(std::string path);
  // nullopt where there is no such file. One that is there and cannot be read is not missing: it
  // fails with ErrorCode::io.
  static std::optional<CacheFile> open_if_there(std::string path);

  const std::string& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  std::string_view metadata(std::string_view key) const;  // empty when absent

  const SafetensorsEntry& get(std::string_view name) const;  // fails when absent
  // The one tensor whose name begins with `prefix` and then a digit; nullptr when there is none,
  // an error when there are several.
  const SafetensorsEntry* find_numbered(std::string_view prefix) const;

  // The whole tensor as f32; `to` has its number of elements. Fails for types that are no floats,
  // for values that are not finite, and where the checksum in the file is not that of the bytes.
  void read(const SafetensorsEntry& entry, std::span<float> to) const;
  // The same of its first elements; the others are read for the checksum alone.
  void read_start(const SafetensorsEntry& entry, std::span<float> to) const;
  // The same of a tensor of bytes, 0 to 255 as -1 to 1.
  void read_pixels(const SafetensorsEntry& entry, std::span<float> to) const;

  // "PATH: tensor NAME: MESSAGE" with ErrorCode::input.
  [[noreturn]] void refuse(const SafetensorsEntry& entry, std::string_view message) const;
  [[noreturn]] void refuse(std::string_view message, std::vector<Advice> advice = {}) const;

 private:
  CacheFile(DiskFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}
  void check_checksum_keys() const;
  template <class Visit>
  void read_chunks(const SafetensorsEntry& entry, std::size_t size, Visit&& visit) const;

  DiskFile file_;
  SafetensorsHeader header_;
};

}  // namespace ballast::data
