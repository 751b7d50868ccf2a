#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

// The part that all fuzz targets share. A target defines one_input(); it may return or end with an
// Error of the codes it allows, whose text is safe to print. Everything else is a finding: another
// exception, a sanitizer's report, a broken require(), too much memory or time.
namespace ballast::fuzz {

// Ends the process: the input found a bug.
void require(bool promise);

// The bytes of one execution, taken from the front.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}

  std::size_t size() const { return bytes_.size(); }
  std::uint8_t byte();      // 0 behind the end
  std::uint64_t word();     // little-endian, of eight bytes
  std::string_view line();  // up to the next line end or the end
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
};

// Defined by each target.
void one_input(Input input);

// Runs `read`; whether it ended without an Error. An Error must have one of these codes.
template <class Read>
bool accepts(Read&& read, std::initializer_list<ErrorCode> codes = {ErrorCode::input});
// What users read beside errors must be safe to print as well.
void check_notes(const std::vector<std::string>& notes);
void check_error(const Error& error, std::initializer_list<ErrorCode> codes);

// A file in memory (/dev/shm, else TMPDIR or /tmp) whose content is replaced by every execution.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view name);  // in a folder of this process
  const std::string& path() const { return path_; }
  const std::string& write(std::string_view bytes);  // returns path()

 private:
  std::string path_;
  int fd_ = -1;
};
// The folder of this process; it goes away when the process ends.
const std::string& memory_folder();

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// A safetensors file of the tensors that lines describe: "name F32 4,8". A line "=key value" is
// metadata. All data together is at most 16 KiB; lines that would exceed it are left out. Data
// repeats `fill`.
std::string safetensors_of_lines(std::string_view lines, std::string_view fill);

template <class Read>
bool accepts(Read&& read, std::initializer_list<ErrorCode> codes) {
  try {
    read();
    return true;
  } catch (const Error& e) {
    check_error(e, codes);
    return false;
  }
}

}  // namespace ballast::fuzz
