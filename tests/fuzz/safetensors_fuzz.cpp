// The header of a safetensors file. The first byte chooses:
//   'S'  a file as it is
//   'H'  a header for a file whose data has the size in the next eight bytes
// A header that is accepted covers its file exactly; written again it is read back the same.

#include <cstring>

#include "fuzz.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/utf8.h"

namespace ballast::fuzz {
namespace {

void check_header(const SafetensorsHeader& header, std::uint64_t file_size) {
  std::uint64_t end = header.data_start();
  for (const SafetensorsEntry& entry : header.entries()) {
    require(entry.offset == end);
    end += entry.bytes;
    require(end >= entry.offset && end <= file_size);
    require(header.find(entry.name) == &entry);
    require(!first_invalid_utf8(entry.name));
    std::uint64_t elements = 1;
    for (const std::int64_t dim : entry.shape) {
      require(dim >= 0);
      elements *= static_cast<std::uint64_t>(dim);
    }
    require(elements * info(entry.dtype).bits == 8 * entry.bytes);
    require(static_cast<std::uint64_t>(entry.shape.elements()) == elements);
  }
  require(end == file_size);
}

// Only the header is made: no source is asked for data.
void check_written(const SafetensorsHeader& header) {
  SafetensorsWriter writer({.metadata = header.metadata()});
  struct Stop {};
  for (const SafetensorsEntry& e : header.entries()) {
    writer.add(std::string(e.name), e.dtype, e.shape, [](const ByteSink&) { throw Stop(); });
  }
  std::string prefix;
  try {
    writer.write_to(
        [&](std::span<const std::byte> piece) {
          prefix.append(reinterpret_cast<const char*>(piece.data()), piece.size());
        },
        "fuzz");
  } catch (const Stop&) {
  }
  const SafetensorsHeader again =
      parse_safetensors_header(bytes_of(prefix), writer.file_bytes(), "fuzz");
  require(again.metadata() == header.metadata());
  require(again.entries().size() == header.entries().size());
  for (const SafetensorsEntry& e : header.entries()) {
    const SafetensorsEntry* const found = again.find(e.name);
    require(found != nullptr && found->dtype == e.dtype && found->shape == e.shape);
  }
}

void read(std::string_view file, std::uint64_t file_size) {
  accepts([&] {
    const SafetensorsHeader header = parse_safetensors_header(bytes_of(file), file_size, "fuzz");
    check_header(header, file_size);
    check_written(header);
  });
}

}  // namespace

void one_input(Input input) {
  switch (input.byte()) {
    case 'S':
      read(input.rest(), input.size());
      break;
    case 'H': {
      const std::uint64_t data = input.word(), length = input.size();
      std::string file(reinterpret_cast<const char*>(&length), sizeof length);
      file += input.rest();
      std::uint64_t size = 0;
      if (!__builtin_add_overflow(file.size(), data, &size)) read(file, size);
      break;
    }
    default:
      break;
  }
}

}  // namespace ballast::fuzz
