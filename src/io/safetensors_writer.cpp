#include "io/safetensors_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "core/checksum.h"
#include "core/error.h"
#include "io/json_writer.h"
#include "io/limits.h"
#include "io/utf8.h"

namespace ballast {
namespace {

void check_text(std::string_view what, std::string_view text) {
  if (first_invalid_utf8(text)) {
    fail(ErrorCode::input, "st.header_utf8: {} \"{}\" is not UTF-8", what, printable(text));
  }
}

std::uint64_t tensor_bytes(std::string_view name, FileDType dtype, const Shape& shape) {
  std::uint64_t bits = 1;
  bool overflow = false;
  for (const std::int64_t dim : shape) {
    check(dim >= 0, "tensor {} has the shape {}", printable(name), shape);
    overflow |= __builtin_mul_overflow(bits, static_cast<std::uint64_t>(dim), &bits);
  }
  overflow |= __builtin_mul_overflow(bits, info(dtype).bits, &bits);
  check(!overflow && bits % 8 == 0, "tensor {} of {} {} has no size in bytes", printable(name),
        dtype, shape);
  return bits / 8;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(Options options) : options_(std::move(options)) {
  check(std::has_single_bit(options_.alignment) && options_.alignment >= 8,
        "data alignment {} is not a power of two from 8", options_.alignment);
  for (const auto& [key, value] : options_.metadata) {
    check_text("metadata key", key);
    check_text("metadata value", value);
  }
}

void SafetensorsWriter::add(std::string name, FileDType dtype, const Shape& shape,
                            ByteSource source) {
  check_text("tensor name", name);
  if (name == "__metadata__" || name.size() > limits::kNameBytes) {
    fail(ErrorCode::input, "a safetensors file cannot hold a tensor named \"{}\"", printable(name));
  }
  const std::uint64_t bytes = tensor_bytes(name, dtype, shape);
  tensors_.push_back({std::move(name), dtype, shape, bytes, std::move(source)});
}

void SafetensorsWriter::add(std::string name, DType dtype, const Shape& shape,
                            std::span<const std::byte> bytes) {
  add(std::move(name), file_dtype(dtype), shape, [bytes](const ByteSink& sink) { sink(bytes); });
}

void SafetensorsWriter::add_checksums() {
  for (const Tensor& t : tensors_) {
    Checksum sum;
    t.source([&](std::span<const std::byte> piece) { sum.add(piece); });
    options_.metadata[checksum_key(t.name)] = sum.text();
  }
}

std::vector<const SafetensorsWriter::Tensor*> SafetensorsWriter::in_file_order() const {
  std::vector<const Tensor*> order;
  order.reserve(tensors_.size());
  for (const Tensor& t : tensors_) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) {
    return std::tie(b->dtype, a->name) < std::tie(a->dtype, b->name);
  });
  return order;
}

std::string SafetensorsWriter::header(const std::vector<const Tensor*>& order) const {
  std::string text = "{";
  const auto separate = [&] {
    if (text.size() > 1) text += ',';
  };
  if (!options_.metadata.empty()) {
    text += "\"__metadata__\":{";
    const char* comma = "";
    for (const auto& [key, value] : options_.metadata) {
      text += comma;
      append_json_string(text, key);
      text += ':';
      append_json_string(text, value);
      comma = ",";
    }
    text += '}';
  }
  std::uint64_t begin = 0;
  for (const Tensor* t : order) {
    std::uint64_t end = 0;
    check(!__builtin_add_overflow(begin, t->bytes, &end), "the tensors pass 2^64 bytes");
    separate();
    append_json_string(text, t->name);
    text += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", t->dtype,
                        fmt::join(t->shape, ","), begin, end);
    begin = end;
  }
  text += '}';
  const std::size_t mask = options_.alignment - 1;
  text.append(-(text.size() + sizeof(std::uint64_t)) & mask, ' ');
  if (text.size() > limits::kSafetensorsHeaderWrite) {
    fail(ErrorCode::input,
         "st.header_too_large: the header would have {} bytes, at "
         "most {} are written",
         text.size(), limits::kSafetensorsHeaderWrite);
  }
  return text;
}

std::uint64_t SafetensorsWriter::file_bytes() const {
  std::uint64_t bytes = sizeof(std::uint64_t) + header(in_file_order()).size();
  for (const Tensor& t : tensors_) bytes += t.bytes;
  return bytes;
}

void SafetensorsWriter::write_to(const ByteSink& sink, std::string_view path) const {
  const std::vector<const Tensor*> order = in_file_order();
  NameIndex names;
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    const auto twin = names.insert(
        tensors_[i].name, i, [&](std::uint32_t n) { return std::string_view(tensors_[n].name); });
    if (twin) {
      fail(ErrorCode::input, "{}: st.duplicate_name: tensor \"{}\" was added twice", path,
           printable(tensors_[i].name));
    }
  }
  const std::string text = header(order);
  const std::uint64_t length = text.size();
  sink(std::as_bytes(std::span(&length, 1)));
  sink(std::as_bytes(std::span(text)));
  for (const Tensor* t : order) {
    std::uint64_t left = t->bytes;
    t->source([&](std::span<const std::byte> piece) {
      check(piece.size() <= left, "tensor {} has {} bytes, more were handed over",
            printable(t->name), t->bytes);
      left -= piece.size();
      sink(piece);
    });
    check(left == 0, "tensor {} has {} bytes, {} were not handed over", printable(t->name),
          t->bytes, left);
  }
}

void SafetensorsWriter::write(const std::string& path, Durability durability) const {
  AtomicFile file(path);
  write_to([&](std::span<const std::byte> piece) { file.write(piece); }, path);
  file.commit(durability);
}

}  // namespace ballast
