#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Reads event files the other way round than they are written, sharing no code with the writer: a
// bit-by-bit CRC and a protobuf walker that knows only wire types.
namespace ballast::test {

inline std::uint32_t slow_crc32c(std::string_view bytes) {
  std::uint32_t c = 0xFFFFFFFFu;
  for (const char b : bytes) {
    c ^= static_cast<unsigned char>(b);
    for (int i = 0; i < 8; ++i) c = (c & 1) != 0 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
  }
  return c ^ 0xFFFFFFFFu;
}

template <class T>
T load(std::string_view bytes, std::size_t at) {
  T value;
  if (at + sizeof(T) > bytes.size()) throw std::runtime_error("short field");
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

inline std::uint32_t masked(std::string_view bytes) {
  const std::uint64_t c = slow_crc32c(bytes);
  return static_cast<std::uint32_t>(((c >> 15) | (c << 17)) + 0xA282EAD8u);
}

struct Field {
  int number = 0, wire = 0;
  std::uint64_t value = 0;  // varint, or the bits of a fixed field
  std::string_view bytes;   // of a length-delimited one
};

inline std::uint64_t take_varint(std::string_view& rest) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest.empty()) throw std::runtime_error("short varint");
    const auto byte = static_cast<unsigned char>(rest.front());
    rest.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  throw std::runtime_error("long varint");
}

inline std::vector<Field> fields_of(std::string_view message) {
  std::vector<Field> fields;
  while (!message.empty()) {
    const std::uint64_t tag = take_varint(message);
    Field f = {static_cast<int>(tag >> 3), static_cast<int>(tag & 7), 0, {}};
    if (f.wire == 0) {
      f.value = take_varint(message);
    } else {
      const std::size_t size = f.wire == 1   ? 8
                               : f.wire == 5 ? 4
                               : f.wire == 2 ? take_varint(message)
                                             : throw std::runtime_error("wire type");
      if (size > message.size()) throw std::runtime_error("short message");
      f.bytes = message.substr(0, size);
      if (f.wire == 1) f.value = load<std::uint64_t>(f.bytes, 0);
      if (f.wire == 5) f.value = load<std::uint32_t>(f.bytes, 0);
      message.remove_prefix(size);
    }
    fields.push_back(f);
  }
  return fields;
}

inline std::optional<Field> field(std::string_view message, int number) {
  for (const Field& f : fields_of(message)) {
    if (f.number == number) return f;
  }
  return std::nullopt;
}

struct ReadValue {
  std::string tag;
  std::optional<float> scalar;
  std::string text, plugin;
  std::string image;  // encoded
  std::uint64_t width = 0, height = 0, channels = 0;
};

struct ReadEvent {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string file_version, writer;
  bool restart = false;
  std::vector<ReadValue> values;
};

// Whole records only; what is left of a torn last one is dropped, as TensorBoard does.
inline std::vector<ReadEvent> read_events(std::string_view file) {
  std::vector<ReadEvent> events;
  while (file.size() >= 12) {
    const auto length = load<std::uint64_t>(file, 0);
    if (load<std::uint32_t>(file, 8) != masked(file.substr(0, 8))) {
      throw std::runtime_error("checksum of a length");
    }
    if (file.size() < 16 + length) break;
    const std::string_view data = file.substr(12, length);
    if (load<std::uint32_t>(file, 12 + length) != masked(data)) {
      throw std::runtime_error("checksum of a record");
    }
    ReadEvent e;
    for (const Field& f : fields_of(data)) {
      if (f.number == 1) std::memcpy(&e.wall_time, &f.value, 8);
      if (f.number == 2) e.step = static_cast<std::int64_t>(f.value);
      if (f.number == 3) e.file_version = f.bytes;
      if (f.number == 7) e.restart = field(f.bytes, 1)->value == 1;
      if (f.number == 10) e.writer = field(f.bytes, 1)->bytes;
      if (f.number != 5) continue;
      for (const Field& v : fields_of(f.bytes)) {
        ReadValue value;
        value.tag = field(v.bytes, 1)->bytes;
        if (const auto scalar = field(v.bytes, 2)) value.scalar = load<float>(scalar->bytes, 0);
        if (const auto tensor = field(v.bytes, 8)) {
          if (field(tensor->bytes, 1)->value != 7) throw std::runtime_error("not a string tensor");
          const auto dim = field(field(tensor->bytes, 2)->bytes, 2);
          if (field(dim->bytes, 1)->value != 1) throw std::runtime_error("shape is not [1]");
          value.text = field(tensor->bytes, 8)->bytes;
          value.plugin = field(field(field(v.bytes, 9)->bytes, 1)->bytes, 1)->bytes;
        }
        if (const auto image = field(v.bytes, 4)) {
          value.height = field(image->bytes, 1)->value;
          value.width = field(image->bytes, 2)->value;
          value.channels = field(image->bytes, 3)->value;
          value.image = field(image->bytes, 4)->bytes;
        }
        e.values.push_back(value);
      }
    }
    events.push_back(e);
    file.remove_prefix(16 + length);
  }
  return events;
}

}  // namespace ballast::test
