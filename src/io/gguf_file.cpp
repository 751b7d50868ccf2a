#include "io/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "core/convert.h"
#include "core/error.h"
#include "io/limits.h"
#include "io/name_index.h"
#include "io/utf8.h"

namespace ballast {
namespace {

constexpr std::size_t kChunk = 64 << 10;
constexpr std::uint64_t kShownText = 512;  // of a text in the metadata
constexpr std::string_view kOriginalShape = "comfy.gguf.orig_shape.";

// Types of metadata.
struct Value {
  enum Type : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    text,
    array,
    u64,
    i64,
    f64
  };
};
constexpr std::uint32_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// nullopt where some of the sizes, in any order, multiply to more than fits: also beside a zero.
std::optional<std::uint64_t> elements_of(std::span<const std::uint64_t> dims) {
  std::uint64_t product = 1;
  bool empty = false;
  for (const std::uint64_t dim : dims) {
    empty |= dim == 0;
    if (__builtin_mul_overflow(product, std::max<std::uint64_t>(dim, 1), &product) ||
        product > 1ull << 62) {
      return std::nullopt;
    }
  }
  return empty ? 0 : product;
}

}  // namespace

// Reads the header from front to back through one chunk of memory.
class GgufReader {
 public:
  explicit GgufReader(DiskFile file) : gguf_(std::move(file)), chunk_(kChunk) {}

  GgufFile read() {
    read_header();
    for (std::uint64_t i = 0; i < keys_; ++i) read_key();
    if (at_ > limits::kGgufMetadata) refuse("gguf.limit", "more than 256 MiB of metadata");
    if (number_of("split.count") > 1) {
      fail(ErrorCode::input,
           fmt::format("{}: gguf.split: one of several files, which are not read", path()),
           {{"gguf-split --merge", "of llama.cpp makes one of them"}});
    }
    for (std::uint64_t i = 0; i < tensors_; ++i) read_tensor();
    place_tensors();
    restore_shapes();
    return std::move(gguf_);
  }

 private:
  const std::string& path() const { return gguf_.path(); }
  [[noreturn]] void refuse(std::string_view rule, const std::string& what) const {
    fail(ErrorCode::input, "{}: {}: {} at byte {}", path(), rule, what, at_);
  }
  std::uint64_t left() const { return gguf_.file_.size() - at_; }

  void take(std::span<std::byte> to) {
    if (to.size() > left()) {
      refuse("gguf.truncated", fmt::format("{} bytes wanted, {} are left", to.size(), left()));
    }
    if (to.size() > kChunk) {
      gguf_.file_.read(at_, to);
    } else {
      if (at_ < chunk_at_ || at_ + to.size() > chunk_at_ + chunk_bytes_) {
        chunk_at_ = at_;
        chunk_bytes_ = std::min<std::uint64_t>(kChunk, left());
        gguf_.file_.read(at_, std::span(chunk_).first(chunk_bytes_));
      }
      std::memcpy(to.data(), chunk_.data() + (at_ - chunk_at_), to.size());
    }
    at_ += to.size();
  }
  template <class T>
  T number() {
    T value;
    take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  void skip(std::uint64_t bytes) {
    if (bytes > left()) {
      refuse("gguf.truncated", fmt::format("{} bytes wanted, {} are left", bytes, left()));
    }
    at_ += bytes;
  }
  std::uint64_t length(std::uint64_t most, const char* of) {
    const auto n = number<std::uint64_t>();
    if (n > most) refuse("gguf.limit", fmt::format("{} of {} bytes, at most {}", of, n, most));
    if (n > left()) refuse("gguf.truncated", fmt::format("{} of {} bytes", of, n));
    return n;
  }
  std::string string(std::uint64_t most, const char* of) {
    std::string s(length(most, of), '\0');
    take(std::as_writable_bytes(std::span(s)));
    if (first_invalid_utf8(s)) refuse("gguf.metadata", fmt::format("{} is not UTF-8", of));
    return s;
  }

  void read_header() {
    char mark[4] = {};
    if (gguf_.file_.size() < 24) refuse("gguf.format", "a file too short for a header");
    take(std::as_writable_bytes(std::span(mark)));
    if (std::string_view(mark, 4) != kGgufMark)
      refuse("gguf.format", "the file does not begin as GGUF");
    const auto version = number<std::uint32_t>();
    if (version != 0 && (version & 0xffff) == 0) refuse("gguf.version", "a big-endian file");
    if (version != 2 && version != 3) {
      refuse("gguf.version", fmt::format("version {}, 2 and 3 are read,", version));
    }
    tensors_ = number<std::uint64_t>();
    keys_ = number<std::uint64_t>();
    // The least a key and a tensor take: a length, a type and a byte; a length, two numbers, a
    // type.
    if (tensors_ > limits::kTensors || tensors_ > left() / 24) {
      refuse("gguf.limit", fmt::format("{} tensors in {} bytes", tensors_, left()));
    }
    if (keys_ > limits::kMetadataKeys || keys_ > left() / 13) {
      refuse("gguf.limit", fmt::format("{} keys in {} bytes", keys_, left()));
    }
  }

  void read_key() {
    const std::string key = string(limits::kGgufKey, "a key");
    if (key.empty()) refuse("gguf.metadata", "an empty key");
    const auto type = number<std::uint32_t>();
    std::string value = type == Value::array ? read_array(key) : read_value(type);
    if (!gguf_.metadata_.emplace(key, std::move(value)).second) {
      refuse("gguf.duplicate", fmt::format("key \"{}\" is there twice", printable(key)));
    }
    if (key != "general.alignment") return;
    const std::uint64_t n = number_of(key);
    if (type != Value::u32 || !std::has_single_bit(n) || n < 8 || n > 1 << 20) {
      refuse("gguf.metadata", "general.alignment is no power of two from 8 to 1 MiB");
    }
    alignment_ = n;
  }

  std::string read_value(std::uint32_t type) {
    switch (type) {
      case Value::u8:
        return fmt::format("{}", number<std::uint8_t>());
      case Value::i8:
        return fmt::format("{}", number<std::int8_t>());
      case Value::u16:
        return fmt::format("{}", number<std::uint16_t>());
      case Value::i16:
        return fmt::format("{}", number<std::int16_t>());
      case Value::u32:
        return fmt::format("{}", number<std::uint32_t>());
      case Value::i32:
        return fmt::format("{}", number<std::int32_t>());
      case Value::f32:
        return fmt::format("{}", number<float>());
      case Value::u64:
        return fmt::format("{}", number<std::uint64_t>());
      case Value::i64:
        return fmt::format("{}", number<std::int64_t>());
      case Value::f64:
        return fmt::format("{}", number<double>());
      case Value::boolean: {
        const auto value = number<std::uint8_t>();
        if (value > 1) refuse("gguf.metadata", fmt::format("true or false is {}", value));
        return value == 1 ? "true" : "false";
      }
      case Value::text: {
        std::string value = string(limits::kGgufString, "a text");
        if (value.size() > kShownText) value.resize(kShownText);
        return value;
      }
      default:
        refuse("gguf.metadata", fmt::format("value type {}", type));
    }
  }

  std::string read_array(const std::string& key) {
    const auto type = number<std::uint32_t>();
    const auto count = number<std::uint64_t>();
    if (type > Value::f64 || type == Value::array) {
      refuse("gguf.metadata", fmt::format("an array of value type {}", type));
    }
    const std::uint64_t least = type == Value::text ? 8 : kValueBytes[type];
    if (count > limits::kGgufArray || count > left() / least) {
      refuse("gguf.limit",
             fmt::format("an array of {} elements, {} bytes are left", count, left()));
    }
    if (type == Value::i32 && count <= limits::kDimensions && key.starts_with(kOriginalShape)) {
      Shape& shape = original_[key.substr(kOriginalShape.size())];
      shape = {};
      for (std::uint64_t i = 0; i < count; ++i) shape.push_back(number<std::int32_t>());
      return fmt::format("{}", to_string(shape));
    }
    for (std::uint64_t i = 0; type == Value::text && i < count; ++i) {
      skip(length(limits::kGgufString, "a text"));
    }
    if (type != Value::text) skip(count * kValueBytes[type]);
    return fmt::format("array of {}", count);
  }

  std::uint64_t number_of(const std::string& key) const {
    const auto found = gguf_.metadata_.find(key);
    if (found == gguf_.metadata_.end()) return 0;
    std::uint64_t n = 0;
    for (const char c : found->second) {
      if (c < '0' || c > '9' || n > 1ull << 32) return ~0ull;
      n = 10 * n + static_cast<std::uint64_t>(c - '0');
    }
    return n;
  }

  void read_tensor() {
    GgufTensor& t = gguf_.tensors_.emplace_back();
    t.name = string(limits::kGgufName, "a tensor name");
    const auto rank = number<std::uint32_t>();
    if (rank > limits::kDimensions) {
      refuse("gguf.limit", fmt::format("tensor \"{}\" has {} dimensions", printable(t.name), rank));
    }
    std::uint64_t dims[limits::kDimensions] = {};
    for (std::uint32_t i = 0; i < rank; ++i) dims[i] = number<std::uint64_t>();
    const auto elements = elements_of(std::span(dims).first(rank));
    const auto id = number<std::uint32_t>();
    t.offset = number<std::uint64_t>();
    t.type = find_gguf_type(id);
    if (t.type == nullptr) {
      const std::string_view known = gguf_type_name(id);
      refuse("gguf.type", fmt::format("tensor \"{}\" is of type {}{}{}, which is not read",
                                      printable(t.name), id, known.empty() ? "" : " ", known));
    }
    if (!elements) {
      refuse("gguf.tensor", fmt::format("tensor \"{}\" has too many elements", printable(t.name)));
    }
    if ((rank == 0 ? 1 : dims[0]) % t.type->elements != 0) {
      refuse("gguf.tensor",
             fmt::format("tensor \"{}\" has rows of {}, {} has blocks of {}", printable(t.name),
                         dims[0], t.type->name, t.type->elements));
    }
    for (std::uint32_t i = rank; i-- > 0;) t.shape.push_back(static_cast<std::int64_t>(dims[i]));
    if (__builtin_mul_overflow(*elements / t.type->elements, std::uint64_t{t.type->bytes},
                               &t.bytes)) {
      refuse("gguf.tensor", fmt::format("tensor \"{}\" has too many bytes", printable(t.name)));
    }
    const auto number = static_cast<std::uint32_t>(gguf_.tensors_.size() - 1);
    const auto name_at = [&](std::uint32_t i) { return std::string_view(gguf_.tensors_[i].name); };
    if (names_.insert(t.name, number, name_at)) {
      refuse("gguf.duplicate", fmt::format("tensor \"{}\" is there twice", printable(t.name)));
    }
  }

  // Offsets count from the first multiple of the alignment behind the header.
  void place_tensors() {
    const std::uint64_t size = gguf_.file_.size();
    const std::uint64_t start = (at_ + alignment_ - 1) / alignment_ * alignment_;
    auto& tensors = gguf_.tensors_;
    for (GgufTensor& t : tensors) {
      if (t.offset % alignment_ != 0) {
        refuse("gguf.offset", fmt::format("tensor \"{}\" at offset {}, no multiple of {}; header",
                                          printable(t.name), t.offset, alignment_));
      }
      if (t.bytes > 0 &&
          (start > size || t.offset > size - start || t.bytes > size - start - t.offset)) {
        refuse("gguf.truncated", fmt::format("tensor \"{}\" of {} bytes at offset {} ends behind "
                                             "the file of {}; header",
                                             printable(t.name), t.bytes, t.offset, size));
      }
      t.offset = t.bytes == 0 ? 0 : t.offset + start;
    }
    std::stable_sort(tensors.begin(), tensors.end(),
                     [](const GgufTensor& a, const GgufTensor& b) { return a.offset < b.offset; });
    std::uint64_t end = start;
    for (const GgufTensor& t : tensors) {
      if (t.bytes == 0) continue;
      if (t.offset < end) {
        refuse("gguf.offset", fmt::format("tensor \"{}\" shares bytes with the one before; header",
                                          printable(t.name)));
      }
      end = t.offset + t.bytes;
    }
    if (size > end && size - end >= alignment_) {
      gguf_.notes_.push_back(
          fmt::format("{}: {} bytes behind the last tensor", path(), size - end));
    }
  }

  // Converters flatten what has too many dimensions for other readers, and say what it was.
  void restore_shapes() {
    for (GgufTensor& t : gguf_.tensors_) {
      const auto found = original_.find(t.name);
      if (found == original_.end()) continue;
      const std::vector<std::uint64_t> dims(found->second.begin(), found->second.end());
      if (elements_of(dims) != t.elements()) {
        refuse("gguf.tensor", fmt::format("tensor \"{}\" of {} was {} once; header",
                                          printable(t.name), t.shape, found->second));
      }
      t.shape = found->second;
    }
  }

  GgufFile gguf_;
  std::vector<std::byte> chunk_;
  std::uint64_t at_ = 0, chunk_at_ = 0, chunk_bytes_ = 0;
  std::uint64_t tensors_ = 0, keys_ = 0, alignment_ = 32;
  std::map<std::string, Shape> original_;
  NameIndex names_;
};

GgufFile GgufFile::open(std::string path, DiskMode mode) {
  return GgufReader(DiskFile::open(std::move(path), mode)).read();
}

void GgufFile::read(const GgufTensor& t, std::uint64_t first, std::span<float> to) const {
  const std::uint64_t block = t.type->elements;
  check(first % block == 0 && to.size() % block == 0 && first <= t.elements() &&
            to.size() <= t.elements() - first,
        "elements {} + {} of {}", first, to.size(), printable(t.name));
  std::vector<std::byte> bytes(to.size() / block * t.type->bytes);
  file_.read(t.offset + first / block * t.type->bytes, bytes);
  if (!t.type->plain) return expand_blocks(*t.type, bytes, to);
  const auto dtype = memory_dtype(*t.type->plain);
  check(dtype.has_value(), "{} is no type to compute with", t.type->name);
  convert(bytes.data(), *dtype, to.data(), DType::f32, static_cast<std::int64_t>(to.size()));
}

}  // namespace ballast
