#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "memory/file_descriptor.h"

namespace ballast {

// What a committed file survives.
enum class Durability {
  power_cut,  // its bytes are on the disk before it gets its name
  process,  // they may still be in the page cache: for scratch files that are read back and removed
};

// "." of a name alone.
std::string folder_of_file(const std::string& path);

// Writes a file that appears under its name complete or not at all. The bytes go to a hidden
// temporary file beside it; commit() forces them to disk, renames the file over `path` and forces
// the folder. Without commit() the temporary file is removed and `path` is as it was; that of a
// killed process is removed by the next one that writes there (io/leftovers.h). Every failure
// is an Error of ErrorCode::io. Of a symbolic link the file that it leads to is replaced. Only
// regular files are: a device, FIFO, socket or folder of that name is an error before anything is
// written.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(AtomicFile&& o) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  const std::string& path() const { return path_; }
  const std::string& temporary_path() const { return temporary_; }
  std::uint64_t written() const { return written_; }

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // Another name in the same folder, where it is known only when the bytes are.
  void set_name(std::string_view name);
  // Once, and nothing is written after it.
  void commit(Durability durability = Durability::power_cut);

 private:
  std::string path_;       // as given
  std::string target_;     // what it leads to
  std::string folder_;     // of the target
  std::string temporary_;  // empty once committed
  void begin_writeback();

  FileDescriptor fd_;
  std::uint64_t written_ = 0;
  std::uint64_t sent_ = 0, arrived_ = 0;  // of them on their way to the disk, and there
};

// A file of that text, complete or not at all.
void write_text_file(const std::string& path, std::string_view text,
                     Durability durability = Durability::power_cut);

// Fails with ErrorCode::io, and says what to do, where a file could not be written under that name:
// no folder, no right to write there, a folder of that name. To be asked before the work whose
// result goes there; nothing stays behind.
void check_can_write(const std::string& path);

}  // namespace ballast
