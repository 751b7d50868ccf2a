#include "data/cache_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "core/convert.h"
#include "core/error.h"

namespace ballast::data {

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
         fmt::format("{}: the header of a cached sample has at most {} bytes, this one claims {}",
                     file.path(), kCacheHeaderBytes, length));
  }
  const std::uint64_t prefix = std::min(file.size(), first.size() + length);
  const auto bytes = std::make_unique_for_overwrite<std::byte[]>(prefix);
  file.read(0, {bytes.get(), prefix});
  SafetensorsHeader header =
      parse_safetensors_header({bytes.get(), prefix}, file.size(), file.path());
  return {std::move(file), std::move(header)};
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
  const std::optional<DType> dtype = memory_dtype(entry.dtype);
  if (!dtype || !info(*dtype).floating) {
    refuse(entry,
           fmt::format("floating-point numbers were expected, the file has {}", entry.dtype));
  }
  check(static_cast<std::uint64_t>(entry.shape.elements()) == to.size(),
        "{} elements are read into {}", entry.shape.elements(), to.size());
  alignas(64) std::array<std::byte, kCacheChunkBytes> chunk;
  const std::size_t most = chunk.size() / size_of(*dtype);
  for (std::size_t done = 0; done < to.size();) {
    const std::span<float> part = to.subspan(done, std::min(most, to.size() - done));
    const std::span<std::byte> raw = std::span(chunk).first(part.size() * size_of(*dtype));
    file_.read(entry.offset + done * size_of(*dtype), raw);
    convert(raw.data(), *dtype, part.data(), DType::f32, static_cast<std::int64_t>(part.size()));
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (std::isfinite(part[i])) continue;
      refuse(entry,
             fmt::format("element {} is {}; the file is damaged or was made from bad numbers",
                         done + i, part[i]));
    }
    done += part.size();
  }
}

void CacheFile::read_pixels(const SafetensorsEntry& entry, std::span<float> to) const {
  check(entry.dtype == FileDType::u8 &&
            static_cast<std::uint64_t>(entry.shape.elements()) == to.size(),
        "{} elements of {} are read into {}", entry.shape.elements(), entry.dtype, to.size());
  std::array<std::byte, kCacheChunkBytes> chunk;
  for (std::size_t done = 0; done < to.size();) {
    const std::span<float> part = to.subspan(done, std::min(chunk.size(), to.size() - done));
    file_.read(entry.offset + done, std::span(chunk).first(part.size()));
    for (std::size_t i = 0; i < part.size(); ++i) {
      part[i] = static_cast<float>(std::to_integer<int>(chunk[i])) / 127.5f - 1.0f;
    }
    done += part.size();
  }
}

void CacheFile::refuse(const SafetensorsEntry& entry, std::string_view message) const {
  refuse(fmt::format("tensor \"{}\": {}", printable(entry.name), message));
}

void CacheFile::refuse(std::string_view message) const {
  fail(ErrorCode::input, fmt::format("{}: {}", path(), message));
}

}  // namespace ballast::data
