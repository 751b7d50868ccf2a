#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/file_descriptor.h"

namespace ballast {

// Text files that somebody else wrote. They are opened like a DiskFile: regular files only, so a
// FIFO, a device or a folder is an error at once and nothing waits. A read that fails is an error
// with its path and reason (ErrorCode::io) and never the end of the file. A file or line beyond its
// limit is wrong input (ErrorCode::input).

// The whole of a small file. what: whose limit it is, as in "a config.json".
std::string read_text_file(const std::string& path, std::uint64_t max_bytes, std::string_view what);

// The same; nullopt where there is no file of that name.
std::optional<std::string> read_text_file_if_there(const std::string& path, std::uint64_t max_bytes,
                                                   std::string_view what);

struct FileLine {
  std::string_view text;     // without its line break; valid until the next line is read
  std::uint64_t number = 0;  // from 1
  std::uint64_t begin = 0;   // bytes before it
  std::uint64_t end = 0;     // where the next line begins
  bool complete = true;      // false: the file ends without a line break
  bool too_long = false;     // its text is empty; only where long lines are skipped
};

struct LineLimits {
  std::uint64_t line_bytes = 1 << 20;
  std::uint64_t file_bytes = UINT64_MAX;
  enum class LongLine : std::uint8_t { refuse, skip } long_line = LongLine::refuse;
};

// A text file line by line, in the memory of its longest line.
class LineReader {
 public:
  static LineReader open(const std::string& path, const LineLimits& limits);
  // A file, a pipe or a terminal; waits for its writer.
  static LineReader standard_input(const LineLimits& limits);

  const std::string& name() const { return name_; }  // the path, or "standard input"
  bool next(FileLine& line);                         // false at the end of the file

 private:
  LineReader(std::string name, int fd, FileDescriptor owned, const LineLimits& limits);
  bool fill();

  std::string name_;
  int fd_;
  FileDescriptor owned_;  // none: standard input stays open
  LineLimits limits_;
  std::vector<char> buffer_;
  std::string_view rest_;  // of the buffer
  std::string line_;
  std::uint64_t at_ = 0, number_ = 0;
  bool ended_ = false;
};

}  // namespace ballast
