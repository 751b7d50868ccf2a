#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"
#include "io/atomic_file.h"
#include "io/file_dtype.h"
#include "io/safetensors.h"

namespace ballast {

// Takes the bytes of one tensor, piece by piece and in order.
using ByteSink = std::function<void(std::span<const std::byte>)>;
// Called once, when the tensor's turn comes; hands all its bytes to the sink.
using ByteSource = std::function<void(const ByteSink&)>;

// Of a tensor's checksum in the metadata of the file that it is in.
inline constexpr std::string_view kChecksumPrefix = "xxh3:";
inline std::string checksum_key(std::string_view tensor) {
  return std::string(kChecksumPrefix).append(tensor);
}

// Collects the tensors of one safetensors file, then writes it: atomically, and with no more of it
// in memory than the piece a source hands over. Tensors are stored by element size descending, then
// by name, whatever the order of add(); the same content gives the same bytes.
class SafetensorsWriter {
 public:
  struct Options {
    Metadata metadata;            // files for PyTorch users carry {"format", "pt"}
    std::uint64_t alignment = 8;  // the data begins at a multiple of it; 4096 suits direct reads
  };

  SafetensorsWriter() = default;
  explicit SafetensorsWriter(Options options);

  void add(std::string name, FileDType dtype, const Shape& shape, ByteSource source);
  void add(std::string name, DType dtype, const Shape& shape, ByteSource source) {
    add(std::move(name), file_dtype(dtype), shape, std::move(source));
  }
  // The bytes must stay until write().
  void add(std::string name, DType dtype, const Shape& shape, std::span<const std::byte> bytes);

  // Puts the checksum of each tensor (core/checksum.h) into the metadata, under checksum_key(). The
  // sources are called for it once more.
  void add_checksums();

  std::uint64_t file_bytes() const;  // of the file that write() makes
  void write(const std::string& path, Durability durability = Durability::power_cut) const;
  // The same bytes to somewhere else; `path` is for messages.
  void write_to(const ByteSink& sink, std::string_view path) const;

 private:
  struct Tensor {
    std::string name;
    FileDType dtype;
    Shape shape;
    std::uint64_t bytes;
    ByteSource source;
  };

  std::vector<const Tensor*> in_file_order() const;
  std::string header(const std::vector<const Tensor*>& order) const;

  Options options_;
  std::vector<Tensor> tensors_;
};

}  // namespace ballast
