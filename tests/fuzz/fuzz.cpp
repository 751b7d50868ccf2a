#include "fuzz.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "core/to_size.h"
#include "io/safetensors_writer.h"
#include "io/utf8.h"

namespace ballast::fuzz {
namespace {

constexpr std::size_t kLongestMessage = 16 << 10;
constexpr std::uint64_t kDataBytes = 16 << 10;

bool is_printable(std::string_view text) {
  return !first_invalid_utf8(text) && std::ranges::none_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n') || byte == 0x7f;
  });
}

void check_text(std::string_view text) {
  if (is_printable(text) && text.size() <= kLongestMessage) return;
  std::fprintf(stderr, "message of %zu bytes is not printable: %.*s\n", text.size(),
               static_cast<int>(std::min<std::size_t>(text.size(), 1000)), text.data());
  std::abort();
}

std::string make_folder() {
  std::error_code error;
  const bool in_memory = std::filesystem::is_directory("/dev/shm", error);
  const char* const chosen = std::getenv("TMPDIR");
  std::string name = std::string(chosen != nullptr ? chosen
                                 : in_memory       ? "/dev/shm"
                                                   : "/tmp") +
                     "/ballast_fuzz.XXXXXX";
  require(::mkdtemp(name.data()) != nullptr);
  return name;
}

struct Folder {
  std::string path = make_folder();
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

// "4,8"
bool parse_shape(std::string_view text, Shape& shape, std::uint64_t& elements) {
  elements = 1;
  while (!text.empty() && shape.rank() < Shape::kMaxRank) {
    std::uint64_t dim = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), dim);
    if (error != std::errc() || dim > kDataBytes) return false;
    shape.push_back(static_cast<std::int64_t>(dim));
    elements *= dim;
    if (elements > 8 * kDataBytes) return false;
    text.remove_prefix(to_size(end - text.data()));
    if (text.starts_with(',')) text.remove_prefix(1);
  }
  return text.empty();
}

}  // namespace

void require(bool promise) {
  if (!promise) std::abort();
}

std::uint8_t Input::byte() {
  if (bytes_.empty()) return 0;
  const auto first = static_cast<std::uint8_t>(bytes_.front());
  bytes_.remove_prefix(1);
  return first;
}

std::uint64_t Input::word() {
  std::uint64_t value = 0;
  const std::size_t bytes = std::min(bytes_.size(), sizeof value);
  std::memcpy(&value, bytes_.data(), bytes);
  bytes_.remove_prefix(bytes);
  return value;
}

std::string_view Input::line() {
  const std::size_t end = std::min(bytes_.find('\n'), bytes_.size());
  const std::string_view line = bytes_.substr(0, end);
  bytes_.remove_prefix(std::min(end + 1, bytes_.size()));
  return line;
}

void check_error(const Error& error, std::initializer_list<ErrorCode> codes) {
  if (std::find(codes.begin(), codes.end(), error.code()) == codes.end()) {
    std::fprintf(stderr, "error of code %d: %s\n", static_cast<int>(error.code()), error.what());
    std::abort();
  }
  check_text(error.what());
  for (const std::string& doing : error.trail()) check_text(doing);
  for (const Advice& advice : error.advice()) check_text(advice.change), check_text(advice.effect);
}

void check_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) check_text(note);
}

const std::string& memory_folder() {
  static const Folder folder;
  return folder.path;
}

MemoryFile::MemoryFile(std::string_view name) : path_(memory_folder() + "/") {
  path_ += name;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  require(fd_ >= 0);
}

const std::string& MemoryFile::write(std::string_view bytes) {
  require(::ftruncate(fd_, static_cast<off_t>(bytes.size())) == 0);
  require(::pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return path_;
}

std::string safetensors_of_lines(std::string_view lines, std::string_view fill) {
  struct Tensor {
    FileDType dtype;
    Shape shape;
    std::uint64_t bytes;
  };
  std::map<std::string, Tensor, std::less<>> tensors;
  SafetensorsWriter::Options options;
  std::uint64_t all = 0;
  for (Input input(lines); input.size() > 0;) {
    const std::string_view line = input.line();
    const std::size_t first = line.find(' '), second = line.find(' ', first + 1);
    if (line.starts_with('=')) {
      const std::string_view key = line.substr(1, first == line.npos ? first : first - 1);
      const std::string_view value = first == line.npos ? "" : line.substr(first + 1);
      if (!first_invalid_utf8(key) && !first_invalid_utf8(value)) {
        options.metadata.insert_or_assign(std::string(key), std::string(value));
      }
      continue;
    }
    if (first == line.npos || second == line.npos || first == 0) continue;
    const auto dtype = file_dtype_from_name(line.substr(first + 1, second - first - 1));
    Shape shape;
    std::uint64_t elements = 0;
    const std::string_view name = line.substr(0, first);
    if (!dtype || first_invalid_utf8(name) || name == "__metadata__" ||
        !parse_shape(line.substr(second + 1), shape, elements)) {
      continue;
    }
    const std::uint64_t bits = elements * info(*dtype).bits;
    if (bits % 8 != 0 || all + bits / 8 > kDataBytes || tensors.contains(name)) continue;
    all += bits / 8;
    tensors.emplace(name, Tensor{*dtype, shape, bits / 8});
  }
  std::string data(all, '\0');
  for (std::size_t i = 0; i < all && !fill.empty(); ++i) data[i] = fill[i % fill.size()];
  SafetensorsWriter writer(std::move(options));
  std::uint64_t at = 0;
  for (const auto& [name, t] : tensors) {
    writer.add(name, t.dtype, t.shape,
               [bytes = std::string_view(data).substr(at, t.bytes)](const ByteSink& sink) {
                 sink(bytes_of(bytes));
               });
    at += t.bytes;
  }
  std::string file;
  writer.write_to(
      [&](std::span<const std::byte> piece) {
        file.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      },
      "fuzz");
  return file;
}

}  // namespace ballast::fuzz

// Short stacks and a small quarantine: twice the executions.
extern "C" const char* __asan_default_options() {
  return "malloc_context_size=8:quarantine_size_mb=16";
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ballast::fuzz::one_input(ballast::fuzz::Input({reinterpret_cast<const char*>(data), size}));
  return 0;
}
