#include "data/cache_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/checksum.h"
#include "core/convert.h"
#include "core/to_size.h"
#include "io/safetensors_writer.h"

namespace ballast::data {
namespace {

Advice cache_again() {
  return {"remove the file and run ballast cache, or the command that wrote it, again",
          "the sample is encoded anew"};
}

}  // namespace

CacheFile CacheFile::open(std::string path) {
  // Buffered: samples are small and read whole, and a second epoch finds them in the page cache.
  DiskFile file = DiskFile::open(std::move(path), DiskMode::buffered);
  std::uint64_t length = 0;
  std::array<std::byte, sizeof length> first{};
  const std::size_t got = std::min<std::uint64_t>(file.size(), first.size());
  file.read(0, std::span(first).first(got));
  std::memcpy(&length, first.data(), sizeof length);
  if (got == first.size() && length > kCacheHeaderBytes) {
    fail(ErrorCode::input,
         "{}: the header of a cached sample has at most {} bytes, this one claims {}", file.path(),
         kCacheHeaderBytes, length);
  }
  const std::uint64_t prefix = std::min(file.size(), first.size() + length);
  const auto bytes = std::make_unique_for_overwrite<std::byte[]>(prefix);
  file.read(0, {bytes.get(), prefix});
  SafetensorsHeader header =
      parse_safetensors_header({bytes.get(), prefix}, file.size(), file.path());
  CacheFile opened(std::move(file), std::move(header));
  opened.check_checksum_keys();
  return opened;
}

// All of its tensors or none: a name that was damaged would take its tensor's checksum along.
void CacheFile::check_checksum_keys() const {
  std::size_t sums = 0;
  for (const auto& [key, value] : header_.metadata()) {
    if (!key.starts_with(kChecksumPrefix)) continue;
    ++sums;
    if (header_.find(std::string_view(key).substr(kChecksumPrefix.size())) == nullptr ||
        !is_checksum_text(value)) {
      refuse(fmt::format("\"{}\" in its metadata is not the checksum of a tensor", printable(key)),
             {cache_again()});
    }
  }
  if (sums != 0 && sums != header_.entries().size()) {
    refuse(fmt::format("{} of its {} tensors have a checksum", sums, header_.entries().size()),
           {cache_again()});
  }
}

// visit(first, bytes) of all of a tensor of elements of `size` bytes, chunk by chunk.
template <class Visit>
void CacheFile::read_chunks(const SafetensorsEntry& entry, std::size_t size, Visit&& visit) const {
  const std::string_view expected = metadata(checksum_key(entry.name));
  Checksum sum;
  alignas(64) std::array<std::byte, kCacheChunkBytes> chunk;
  const std::uint64_t most = chunk.size() / size * size;
  for (std::uint64_t done = 0; done < entry.bytes;) {
    const auto raw = std::span(chunk).first(std::min(most, entry.bytes - done));
    file_.read(entry.offset + done, raw);
    if (!expected.empty()) sum.add(raw);
    visit(to_size(done / size), std::span<const std::byte>(raw));
    done += raw.size();
  }
  if (expected.empty() || sum.text() == expected) return;
  refuse(
      fmt::format("tensor \"{}\": its bytes are not those that were written: the checksum is {}, "
                  "{} when it was cached",
                  printable(entry.name), sum.text(), expected),
      {cache_again()});
}

std::optional<CacheFile> CacheFile::open_if_there(std::string path) {
  if (::access(path.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
    return std::nullopt;
  }
  try {
    return open(std::move(path));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::io) throw;
    fail(ErrorCode::io, e.what(),
         {{"make the file readable", "it is used as it is"},
          {"or remove it", "ballast cache encodes it again"}});
  }
}

std::string_view CacheFile::metadata(std::string_view key) const {
  const auto found = header_.metadata().find(key);
  return found == header_.metadata().end() ? std::string_view() : found->second;
}

const SafetensorsEntry& CacheFile::get(std::string_view name) const {
  if (const SafetensorsEntry* entry = header_.find(name)) return *entry;
  refuse(fmt::format("has no tensor \"{}\"", name));
}

const SafetensorsEntry* CacheFile::find_numbered(std::string_view prefix) const {
  const SafetensorsEntry* found = nullptr;
  for (const SafetensorsEntry& entry : header_.entries()) {
    if (!entry.name.starts_with(prefix) || entry.name.size() == prefix.size()) continue;
    const char next = entry.name[prefix.size()];
    if (next < '0' || next > '9') continue;
    if (found != nullptr) {
      refuse(entry,
             fmt::format("a second one of this kind, beside \"{}\"", printable(found->name)));
    }
    found = &entry;
  }
  return found;
}

void CacheFile::read(const SafetensorsEntry& entry, std::span<float> to) const {
  check(static_cast<std::uint64_t>(entry.shape.elements()) == to.size(),
        "{} elements are read into {}", entry.shape.elements(), to.size());
  read_start(entry, to);
}

void CacheFile::read_start(const SafetensorsEntry& entry, std::span<float> to) const {
  const std::optional<DType> dtype = memory_dtype(entry.dtype);
  if (!dtype || !info(*dtype).floating) {
    refuse(entry,
           fmt::format("floating-point numbers were expected, the file has {}", entry.dtype));
  }
  check(static_cast<std::uint64_t>(entry.shape.elements()) >= to.size(),
        "{} elements are read into {}", entry.shape.elements(), to.size());
  std::optional<std::size_t> bad;
  const std::size_t size = size_of(*dtype);
  read_chunks(entry, size, [&](std::size_t first, std::span<const std::byte> raw) {
    if (first >= to.size()) return;
    const std::span<float> part = to.subspan(first, std::min(raw.size() / size, to.size() - first));
    convert(raw.data(), *dtype, part.data(), DType::f32, static_cast<std::int64_t>(part.size()));
    for (std::size_t i = 0; i < part.size() && !bad; ++i) {
      if (!std::isfinite(part[i])) bad = first + i;
    }
  });
  if (!bad) return;
  refuse(entry, fmt::format("element {} is {}; the file is damaged or was made from bad numbers",
                            *bad, to[*bad]));
}

void CacheFile::read_pixels(const SafetensorsEntry& entry, std::span<float> to) const {
  check(entry.dtype == FileDType::u8 &&
            static_cast<std::uint64_t>(entry.shape.elements()) == to.size(),
        "{} elements of {} are read into {}", entry.shape.elements(), entry.dtype, to.size());
  read_chunks(entry, 1, [&](std::size_t first, std::span<const std::byte> raw) {
    for (std::size_t i = 0; i < raw.size(); ++i) {
      to[first + i] = static_cast<float>(std::to_integer<int>(raw[i])) / 127.5f - 1.0f;
    }
  });
}

void CacheFile::refuse(const SafetensorsEntry& entry, std::string_view message) const {
  refuse(fmt::format("tensor \"{}\": {}", printable(entry.name), message));
}

void CacheFile::refuse(std::string_view message, std::vector<Advice> advice) const {
  fail(ErrorCode::input, fmt::format("{}: {}", path(), message), std::move(advice));
}

}  // namespace ballast::data
