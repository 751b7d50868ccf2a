#include "data/latent_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/convert.h"
#include "core/error.h"
#include "core/path_kind.h"
#include "core/random.h"
#include "data/media_folder.h"
#include "io/utf8.h"

namespace ballast::data {
namespace {

// A name of 255 bytes is the limit of common file systems; the suffixes of ours and those of a
// temporary file come on top.
constexpr std::size_t kLongestKey = 150;

void check_store(DType store) {
  check(store == DType::f32 || store == DType::bf16 || store == DType::f16,
        "cached samples are f32, bf16 or f16, not {}", store);
}

// Converts while it writes, so that a latent is never there twice.
ByteSource converted(std::span<const float> values, DType store) {
  return [values, store](const ByteSink& sink) {
    std::vector<std::byte> chunk(64 << 10);
    const std::size_t most = chunk.size() / size_of(store);
    for (std::size_t at = 0; at < values.size(); at += most) {
      const std::span<const float> part = values.subspan(at, std::min(most, values.size() - at));
      convert(part.data(), DType::f32, chunk.data(), store, static_cast<std::int64_t>(part.size()),
              Rounding::saturating);
      sink({chunk.data(), part.size() * size_of(store)});
    }
  };
}

Metadata latent_metadata(const CachedLatent& latent) {
  return {{"ballast_cache", std::string(kCacheFormat)},
          {"kind", "latent"},
          {"fps", fmt::format("{}", latent.fps)}};
}

void write_latent_file(const std::string& path, Metadata metadata, const CachedLatent& l,
                       CacheWriting how) {
  SafetensorsWriter writer({.metadata = std::move(metadata)});
  const LatentShape& s = l.shape;
  add_values(writer, "latent", {s.channels, s.frames, s.height, s.width}, l.latent, how.store);
  if (l.conditioning_channels > 0) {
    add_values(writer, "conditioning", {l.conditioning_channels, s.frames, s.height, s.width},
               l.conditioning, how.store);
  }
  if (!l.mask.empty()) add_values(writer, "mask", {s.height, s.width}, l.mask, how.store);
  write_cache_file(path, std::move(writer), how.durability);
}

std::string describe(const SourceStamp& s) {
  return fmt::format("{}|{}|{}", cache_key(s.name), s.bytes, s.modified_ns);
}

Metadata origin_metadata(const LatentOrigin& origin) {
  return {{"fingerprint", fingerprint(origin)},
          {"source_width", fmt::format("{}", origin.media_size.width)},
          {"source_height", fmt::format("{}", origin.media_size.height)},
          {"source_frames", fmt::format("{}", origin.media_size.frames)},
          {"source_fps", fmt::format("{}", origin.media_size.fps)}};
}

}  // namespace

void add_values(SafetensorsWriter& writer, std::string name, const Shape& shape,
                std::span<const float> values, DType store) {
  check(shape.elements() == static_cast<std::int64_t>(values.size()), "{}: {} numbers for {}", name,
        values.size(), shape);
  check_store(store);
  writer.add(std::move(name), store, shape, converted(values, store));
}

void write_cache_file(const std::string& path, SafetensorsWriter writer, Durability durability) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_io(folder.string(), "make this folder", error.value());
  writer.add_checksums();
  writer.write(path, durability);
}

std::optional<SourceStamp> stamp_of(const std::string& folder, const std::string& name) {
  struct stat s {};
  if (::stat((folder + "/" + name).c_str(), &s) != 0 || !S_ISREG(s.st_mode)) return std::nullopt;
  return SourceStamp{name, static_cast<std::uint64_t>(s.st_size),
                     static_cast<std::int64_t>(s.st_mtim.tv_sec) * 1'000'000'000 +
                         static_cast<std::int64_t>(s.st_mtim.tv_nsec)};
}

std::optional<SourceStamp> stamp_of(const std::string& path) {
  if (is_folder(path)) {
    std::optional<SourceStamp> all;
    for (const std::string& image : image_paths(path)) {
      const auto one = stamp_of(image);
      if (!one) continue;
      if (!all) all = SourceStamp{.name = std::filesystem::path(path).filename().string()};
      all->bytes += one->bytes;
      all->modified_ns = std::max(all->modified_ns, one->modified_ns);
    }
    return all;
  }
  const std::filesystem::path p(path);
  return stamp_of(p.has_parent_path() ? p.parent_path().string() : ".", p.filename().string());
}

std::string statistics_key(const VaeStatistics& s) {
  if (s.empty()) return "";
  std::string bytes;
  for (const std::vector<float>* part : {&s.mean, &s.std}) {
    for (const float x : *part) bytes += fmt::format("{} ", x);
  }
  return fmt::format("{:016x}", hash_of(bytes));
}

std::string fingerprint(const LatentOrigin& o) {
  return fmt::format("{}|{}{}{}|{}|{}|{}|{}x{}x{}", kCacheFormat, o.cache_name,
                     o.statistics.empty() ? "" : "~", o.statistics, describe(o.media),
                     o.mask ? describe(*o.mask) : "-", o.clip_mode, o.bucket.width, o.bucket.height,
                     o.bucket.frames);
}

std::string without_statistics(std::string_view fingerprint) {
  const std::size_t first = fingerprint.find('|');
  const std::size_t end = first == fingerprint.npos ? first : fingerprint.find('|', first + 1);
  const std::size_t mark = fingerprint.find('~');
  if (end == fingerprint.npos || mark > end) return std::string(fingerprint);
  return fmt::format("{}{}", fingerprint.substr(0, mark), fingerprint.substr(end));
}

std::string text_fingerprint(std::string_view cache_name, std::string_view caption) {
  return fmt::format("{}|{}|{:016x}", kCacheFormat, cache_name, hash_of(caption));
}

std::string cache_folder(const std::string& media_folder, std::string_view cache_name) {
  return fmt::format("{}/cache/{}", media_folder, cache_name);
}

std::string cache_key(std::string_view name) {
  bool plain = !name.empty() && name.size() <= kLongestKey && name[0] != '.' &&
               !first_invalid_utf8(name).has_value();
  for (const char c : name) plain = plain && c != '/' && c != '\0';
  if (plain) return std::string(name);
  std::string key;
  for (const char c : name.substr(0, 100)) {
    const auto u = static_cast<unsigned char>(c);
    key += u > 0x20 && u < 0x7f && c != '/' && c != '.' ? c : '_';
  }
  return fmt::format("{}~{:016x}", key, hash_of(name));
}

std::string latent_name(std::string_view media_name, const ClipSize& b) {
  return fmt::format("{}@{}x{}x{}", cache_key(media_name), b.width, b.height, b.frames);
}

std::string text_name(std::string_view media_name, std::int64_t caption) {
  return fmt::format("{}#{}", cache_key(media_name), caption);
}

std::string dropped_name(std::string_view media_name) {
  return fmt::format("{}@dropped", cache_key(media_name));
}

std::string latent_path(const std::string& cache, std::string_view name) {
  return fmt::format("{}/latents/{}.safetensors", cache, name);
}

std::string text_path(const std::string& cache, std::string_view name) {
  return fmt::format("{}/text/{}.safetensors", cache, name);
}

std::string empty_caption_path(const std::string& cache) {
  return cache + "/empty_caption.safetensors";
}

void write_latent(const std::string& cache, const LatentOrigin& origin, const CachedLatent& latent,
                  CacheWriting how) {
  Metadata metadata = latent_metadata(latent);
  metadata.merge(origin_metadata(origin));
  write_latent_file(latent_path(cache, latent_name(origin.media.name, origin.bucket)),
                    std::move(metadata), latent, how);
}

void write_pixels(const std::string& cache, const LatentOrigin& origin, const CachedPixels& clip,
                  Durability durability) {
  Metadata metadata = origin_metadata(origin);
  metadata.insert({{"ballast_cache", std::string(kCacheFormat)}, {"kind", "pixels"}});
  SafetensorsWriter writer({.metadata = std::move(metadata)});
  writer.add("pixels", DType::u8, {clip.frames, clip.height, clip.width, 3},
             std::as_bytes(clip.pixels));
  write_cache_file(latent_path(cache, latent_name(origin.media.name, origin.bucket)),
                   std::move(writer), durability);
}

void write_dropped(const std::string& cache, const LatentOrigin& origin, std::string_view reason) {
  Metadata metadata = origin_metadata(origin);
  metadata.insert({{"ballast_cache", std::string(kCacheFormat)},
                   {"kind", "dropped"},
                   {"reason", std::string(reason)}});
  write_cache_file(latent_path(cache, dropped_name(origin.media.name)),
                   SafetensorsWriter({.metadata = std::move(metadata)}), Durability::power_cut);
}

void write_text_rows(const std::string& path, std::string_view cache_name, const CachedText& text,
                     CacheWriting how) {
  if (first_invalid_utf8(text.caption)) {
    fail(ErrorCode::input, "{}: the caption \"{}\" is not UTF-8", path, printable(text.caption));
  }
  Metadata metadata{{"ballast_cache", std::string(kCacheFormat)},
                    {"kind", "text"},
                    {"caption", std::string(text.caption)},
                    {"fingerprint", text_fingerprint(cache_name, text.caption)}};
  SafetensorsWriter writer({.metadata = std::move(metadata)});
  add_values(writer, "text", {text.tokens, text.dim}, text.rows, how.store);
  write_cache_file(path, std::move(writer), how.durability);
}

void write_text(const std::string& cache, std::string_view cache_name, std::string_view name,
                const CachedText& text, CacheWriting how) {
  write_text_rows(text_path(cache, name), cache_name, text, how);
}

void write_cached_sample(const std::string& cache, std::string_view id, const CachedLatent& latent,
                         const CachedText& text, CacheWriting how) {
  check(cache_key(id) == id, "\"{}\" is no name for a cached sample", printable(id));
  // The latent last: a sample whose latent is there is complete.
  write_text_rows(text_path(cache, id), "", text, how);
  write_latent_file(latent_path(cache, id), latent_metadata(latent), latent, how);
}

}  // namespace ballast::data
