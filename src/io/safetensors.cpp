#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <tuple>
#include <utility>

#include "core/convert.h"
#include "core/error.h"
#include "io/gguf_file.h"
#include "io/json_reader.h"
#include "io/limits.h"
#include "io/torch_file.h"
#include "io/utf8.h"

namespace ballast {

static_assert(std::endian::native == std::endian::little, "tensor bytes are used as they are");

namespace {

constexpr std::uint64_t kLengthBytes = 8;

template <class... Args>
[[noreturn]] void refuse(const std::string& path, std::string_view rule,
                         fmt::format_string<Args...> text, Args&&... args) {
  fail(ErrorCode::input, "{}: {}: {}", path, rule, fmt::format(text, std::forward<Args>(args)...));
}

// What no other format claims by its first bytes is read as safetensors, whatever its name.
std::string_view unknown_kind(const std::string& path) {
  return path.ends_with(".safetensors")
             ? ""
             : " (it does not begin like a PyTorch, GGUF or media file either)";
}

// Steps 1 to 3: the length of the header text, which is then known to lie in the file.
std::uint64_t checked_length(std::span<const std::byte, kLengthBytes> first,
                             std::uint64_t file_size, const std::string& path) {
  std::uint64_t length = 0;
  std::memcpy(&length, first.data(), sizeof length);
  if (length > limits::kSafetensorsHeaderRead) {
    refuse(path, "st.header_too_large", "header length at byte 0 is {}, at most {} is accepted{}",
           length, limits::kSafetensorsHeaderRead, unknown_kind(path));
  }
  if (length > file_size - kLengthBytes) {
    refuse(path, "st.header_length",
           "header length at byte 0 is {}, but only {} bytes follow in a file of {}", length,
           file_size - kLengthBytes, file_size);
  }
  return length;
}

void refuse_gguf(std::span<const std::byte> start, const std::string& path) {
  if (!GgufFile::is_one(start)) return;
  fail(ErrorCode::input, fmt::format("{}: st.gguf: a GGUF file: its weights are quantised", path),
       {{fmt::format("ballast convert model {} OUT.safetensors", path), "makes weights of them"}});
}

void check_size(std::uint64_t file_size, const std::string& path) {
  if (file_size >= kLengthBytes) return;
  refuse(path, "st.header_too_small", "the file has {} bytes, a header takes at least {}{}",
         file_size, kLengthBytes, unknown_kind(path));
}

}  // namespace

class SafetensorsHeaderParser {
 public:
  SafetensorsHeaderParser(std::string path, std::unique_ptr<char[]> text, std::uint64_t length,
                          std::uint64_t file_size)
      : length_(length), file_size_(file_size) {
    header_.path_ = std::move(path);
    header_.text_ = std::move(text);
    header_.data_start_ = kLengthBytes + length;
  }

  SafetensorsHeader parse() {
    const std::string_view text(header_.text_.get(), length_);
    if (const auto bad = first_invalid_utf8(text)) {
      refuse(path(), "st.header_utf8", "byte offset {} holds 0x{:02x}, which is not UTF-8",
             kLengthBytes + *bad, static_cast<unsigned char>(text[*bad]));
    }
    read_text(text);
    check_layout();
    return std::move(header_);
  }

 private:
  const std::string& path() const { return header_.path_; }

  void read_text(std::string_view text) {
    JsonReader json(
        {.text = text, .path = path(), .rule = "st.header_json", .file_offset = kLengthBytes});
    json.open_object();
    bool metadata_seen = false;
    for (std::string_view key; json.next_key(key);) {
      if (key == "__metadata__") {
        if (metadata_seen) json.fail_here("a second \"__metadata__\"");
        metadata_seen = true;
        read_metadata(json);
      } else {
        add_name(json, key);
        read_tensor(json);
      }
    }
    json.finish();
  }

  void read_metadata(JsonReader& json) {
    if (json.peek() == JsonReader::Kind::null) return json.null();
    json.open_object();
    for (std::string_view key; json.next_key(key);) {
      if (header_.metadata_.size() == limits::kMetadataKeys) {
        refuse(path(), "st.limit", "\"__metadata__\" has more than {} keys at byte offset {}",
               limits::kMetadataKeys, json.file_offset());
      }
      const auto [place, fresh] = header_.metadata_.try_emplace(std::string(key));
      if (!fresh) {
        refuse(path(), "st.duplicate_name", "metadata key \"{}\" is there twice (byte offset {})",
               printable(place->first), json.file_offset());
      }
      place->second = json.string();
    }
  }

  void add_name(JsonReader& json, std::string_view key) {
    if (key.size() > limits::kNameBytes) {
      refuse(path(), "st.limit", "tensor name \"{}\" at byte offset {} is longer than {} bytes",
             printable(key), json.file_offset(), limits::kNameBytes);
    }
    auto& entries = header_.entries_;
    if (entries.size() == limits::kTensors) {
      refuse(path(), "st.limit", "more than {} tensors (byte offset {})", limits::kTensors,
             json.file_offset());
    }
    key = header_.names_.keep(key, {header_.text_.get(), length_});
    const auto number = static_cast<std::uint32_t>(entries.size());
    entries.emplace_back().name = key;
    const auto twin =
        header_.index_.insert(key, number, [&](std::uint32_t i) { return entries[i].name; });
    if (twin) {
      refuse(path(), "st.duplicate_name", "tensor \"{}\" is there twice (byte offset {})",
             printable(key), json.file_offset());
    }
  }

  void read_tensor(JsonReader& json) {
    SafetensorsEntry& entry = header_.entries_.back();
    bool dtype = false, shape = false, offsets = false;
    const auto once = [&](bool& seen) {
      if (std::exchange(seen, true)) json.fail_here("the same field twice");
    };
    json.open_object();
    for (std::string_view key; json.next_key(key);) {
      if (key == "dtype") {
        once(dtype);
        const std::string_view name = json.string();
        const auto known = file_dtype_from_name(name);
        if (!known) json.fail_value(fmt::format("unknown dtype \"{}\"", printable(name)));
        entry.dtype = *known;
      } else if (key == "shape") {
        once(shape);
        read_shape(json, entry);
      } else if (key == "data_offsets") {
        once(offsets);
        json.open_array();
        const auto next = [&] {
          if (!json.next_element()) json.fail_here("data_offsets has fewer than two elements");
          return json.u64();
        };
        entry.offset = next();
        entry.bytes = next();  // the end, until check_layout()
        if (json.next_element()) json.fail_here("data_offsets has more than two elements");
      } else {
        json.skip();
      }
    }
    if (!dtype || !shape || !offsets) {
      json.fail_here(fmt::format("tensor \"{}\" has no {}", printable(entry.name),
                                 !dtype   ? "dtype"
                                 : !shape ? "shape"
                                          : "data_offsets"));
    }
  }

  void read_shape(JsonReader& json, SafetensorsEntry& entry) {
    json.open_array();
    while (json.next_element()) {
      const std::uint64_t dim = json.u64();
      if (entry.shape.rank() == limits::kDimensions) {
        refuse(path(), "st.limit", "tensor \"{}\" has more than {} dimensions (byte offset {})",
               printable(entry.name), limits::kDimensions, json.file_offset());
      }
      entry.shape.push_back(static_cast<std::int64_t>(dim));  // above 2^63: element_bits() refuses
    }
  }

  // Steps 6 to 10, on the tensors in offset order.
  void check_layout() {
    auto& entries = header_.entries_;
    const auto before = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
    };
    // Writers list tensors as they lie, so there is mostly nothing to do.
    if (!std::is_sorted(entries.begin(), entries.end(), before)) {
      std::sort(entries.begin(), entries.end(), before);
      header_.index_ = {};
      const auto name_at = [&](std::uint32_t i) { return entries[i].name; };
      for (std::uint32_t i = 0; i < entries.size(); ++i) {
        header_.index_.insert(entries[i].name, i, name_at);
      }
    }
    std::uint64_t previous_end = 0;
    for (SafetensorsEntry& entry : entries) {
      const std::uint64_t begin = entry.offset, end = entry.bytes;
      check_offsets(entry, begin, end, previous_end);
      const std::uint64_t bits = element_bits(entry);
      if (bits % 8 != 0) {
        refuse(path(), "st.misaligned", "tensor \"{}\" of {} {} takes {} bits, not whole bytes",
               printable(entry.name), entry.dtype, entry.shape, bits);
      }
      if (end - begin != bits / 8) {
        refuse(path(), "st.size_mismatch",
               "tensor \"{}\" of {} {} takes {} bytes, but data_offsets [{}, {}] give {}",
               printable(entry.name), entry.dtype, entry.shape, bits / 8, begin, end, end - begin);
      }
      previous_end = end;
      entry.bytes = end - begin;
      // Past the file for a truncated one; that is found below, before anyone reads.
      entry.offset = begin + header_.data_start_;
    }
    check_end(previous_end);
  }

  void check_offsets(const SafetensorsEntry& entry, std::uint64_t begin, std::uint64_t end,
                     std::uint64_t previous_end) const {
    const char* what = end < begin            ? "reversed: the end is before the begin"
                       : begin > previous_end ? "a hole: the begin is past the end before it"
                       : begin < previous_end ? "an overlap: the begin is before the end before it"
                                              : nullptr;
    if (what == nullptr) return;
    refuse(path(), "st.offset", "tensor \"{}\" has data_offsets [{}, {}], {}, {} (data at byte {})",
           printable(entry.name), begin, end, what, previous_end, header_.data_start_);
  }

  // Left to right as the reference does: [0, huge, huge] is empty, [huge, huge, 0] overflows.
  std::uint64_t element_bits(const SafetensorsEntry& entry) const {
    std::uint64_t bits = 1;
    bool overflow = false;
    for (const std::int64_t dim : entry.shape) {
      overflow |= dim < 0;  // was above 2^63 - 1
      overflow |= __builtin_mul_overflow(bits, static_cast<std::uint64_t>(dim), &bits);
    }
    overflow |= __builtin_mul_overflow(bits, info(entry.dtype).bits, &bits);
    if (overflow) {
      std::string dims;
      for (const std::int64_t dim : entry.shape) {
        dims += fmt::format("{}{}", dims.empty() ? "" : ", ", static_cast<std::uint64_t>(dim));
      }
      refuse(path(), "st.overflow", "tensor \"{}\" of {} [{}] has more bits than 2^64 - 1",
             printable(entry.name), entry.dtype, dims);
    }
    return bits;
  }

  void check_end(std::uint64_t last_end) const {
    const std::uint64_t data_bytes = file_size_ - header_.data_start_;
    if (last_end == data_bytes) return;
    refuse(path(), last_end < data_bytes ? "st.trailing" : "st.truncated",
           "the tensors end {} bytes after byte {}, the file has {} there (file size {})", last_end,
           header_.data_start_, data_bytes, file_size_);
  }

  SafetensorsHeader header_;
  std::uint64_t length_;
  std::uint64_t file_size_;
};

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto i = index_.find(name, [&](std::uint32_t n) { return entries_[n].name; });
  return i ? &entries_[*i] : nullptr;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> prefix,
                                           std::uint64_t file_size, std::string path) {
  check_size(file_size, path);
  check(prefix.size() >= kLengthBytes, "a prefix of {} bytes holds no length", prefix.size());
  const std::uint64_t length = checked_length(prefix.first<kLengthBytes>(), file_size, path);
  check(prefix.size() - kLengthBytes >= length, "a prefix of {} bytes for a header of {}",
        prefix.size(), length);
  auto text = std::make_unique_for_overwrite<char[]>(length);
  std::memcpy(text.get(), prefix.data() + kLengthBytes, length);
  return SafetensorsHeaderParser(std::move(path), std::move(text), length, file_size).parse();
}

SafetensorsFile SafetensorsFile::open(std::string path, DiskMode mode) {
  DiskFile file = DiskFile::open(std::move(path), mode);
  check_size(file.size(), file.path());
  std::array<std::byte, 16> start{};
  file.read(0, std::span(start).first(std::min<std::uint64_t>(start.size(), file.size())));
  if (TorchFile::is_one(start)) return of(TorchFile::open(file.path(), mode));
  refuse_gguf(start, file.path());
  const std::uint64_t length =
      checked_length(std::span(start).first<kLengthBytes>(), file.size(), file.path());
  auto text = std::make_unique_for_overwrite<char[]>(length);
  file.read(kLengthBytes, {reinterpret_cast<std::byte*>(text.get()), length});
  SafetensorsHeader header =
      SafetensorsHeaderParser(file.path(), std::move(text), length, file.size()).parse();
  return SafetensorsFile(std::move(file), std::move(header));
}

SafetensorsFile SafetensorsFile::of(TorchFile torch) {
  SafetensorsHeader header;
  header.path_ = torch.path();
  header.container_ = "PyTorch";
  header.notes_.assign(torch.notes().begin(), torch.notes().end());
  const auto name_at = [&](std::uint32_t i) { return header.entries_[i].name; };
  for (const TorchTensor& t : torch.tensors()) {
    if (!t.contiguous) {
      fail(ErrorCode::input,
           fmt::format("{}: pth.strided: tensor \"{}\" of {} has strides {}: its elements do not "
                       "lie in order",
                       torch.path(), printable(t.name), t.shape, t.strides),
           {{fmt::format("ballast convert model {} OUT.safetensors", torch.path()),
             "puts them in order"}});
    }
    const auto number = static_cast<std::uint32_t>(header.entries_.size());
    header.entries_.push_back({.name = header.names_.keep(t.name, {}),
                               .dtype = t.dtype,
                               .shape = t.shape,
                               .offset = t.offset,
                               .bytes = t.bytes});
    header.index_.insert(header.entries_.back().name, number, name_at);
  }
  return SafetensorsFile(std::move(torch).release(), std::move(header));
}

const SafetensorsEntry& SafetensorsFile::get(std::string_view name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  refuse(path(), "st.missing", "there is no tensor \"{}\" among its {}", printable(name),
         entries().size());
}

DType SafetensorsFile::dtype(const SafetensorsEntry& entry) const {
  if (const auto known = memory_dtype(entry.dtype)) return *known;
  refuse(path(), "st.dtype", "tensor \"{}\" at byte {} is {}, which Ballast cannot compute with",
         printable(entry.name), entry.offset, entry.dtype);
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::span<std::byte> to,
                           PageCache cache) const {
  check(to.size() == entry.bytes, "tensor {} has {} bytes, the room is {}", printable(entry.name),
        entry.bytes, to.size());
  file_.read(entry.offset, to, cache);
}

std::vector<float> SafetensorsFile::floats(const SafetensorsEntry& entry) const {
  std::vector<std::byte> raw(entry.bytes);
  read(entry, raw);
  std::vector<float> values(to_size(entry.shape.elements()));
  convert(raw.data(), dtype(entry), values.data(), DType::f32, std::ssize(values));
  return values;
}

}  // namespace ballast
