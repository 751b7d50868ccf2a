// Everything that reads text from a stranger's file. The first byte of the input chooses:
//   'S'  a safetensors file as it is
//   'H'  a safetensors header for a file whose size is in the next eight bytes
//   'I'  a shard index
//   'J'  any JSON text
// Refusals must be errors of the input; what is accepted must keep its promises.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"
#include "io/checkpoint_index.h"
#include "io/json_reader.h"
#include "io/safetensors.h"
#include "io/utf8.h"

namespace {

using namespace ballast;

void require(bool promise) {
  if (!promise) std::abort();
}

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
  }
  require(end == file_size);
}

void read_safetensors(std::span<const std::byte> bytes, std::uint64_t file_size) {
  check_header(parse_safetensors_header(bytes, file_size, "fuzz"), file_size);
}

void read_index(std::string_view text) {
  const CheckpointIndex index = parse_checkpoint_index(text, "fuzz");
  for (const auto& [name, shard] : index.weight_map) {
    require(shard < index.shards.size() && !first_invalid_utf8(name));
  }
  for (const std::string& shard : index.shards) {
    require(!shard.empty() && shard.front() != '/' && shard.find('\0') == std::string::npos);
    require(("/" + shard + "/").find("/../") == std::string::npos);
  }
}

void read_json(std::string_view text) {
  JsonReader json({.text = text, .path = "fuzz", .rule = "fuzz"});
  json.skip();
  json.finish();
}

void read(std::span<const std::byte> input) {
  if (input.empty()) return;
  const char what = static_cast<char>(input[0]);
  const std::span<const std::byte> rest = input.subspan(1);
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  if (what == 'S') {
    read_safetensors(rest, rest.size());
  } else if (what == 'H' && rest.size() >= 8) {
    // The header's length is what is there; the data is as long as the input says.
    std::uint64_t data = 0;
    std::memcpy(&data, rest.data(), sizeof data);
    const std::uint64_t length = rest.size() - 8;
    std::string file(reinterpret_cast<const char*>(&length), sizeof length);
    file += text.substr(8);
    std::uint64_t size = 0;
    if (__builtin_add_overflow(file.size(), data, &size)) return;
    read_safetensors(std::as_bytes(std::span(file)), size);
  } else if (what == 'I') {
    read_index(text);
  } else if (what == 'J') {
    read_json(text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    read(std::as_bytes(std::span(data, size)));
  } catch (const Error& e) {
    require(e.code() == ErrorCode::input);
  }
  return 0;
}
