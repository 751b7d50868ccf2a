#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/commands/inspect_parts.h"
#include "core/bytes.h"
#include "core/error.h"
#include "core/path_kind.h"
#include "io/limits.h"
#include "io/media_reader.h"
#include "memory/disk_file.h"

namespace ballast {
namespace {

// Deeper than JSON is read elsewhere too; brackets in texts count, which does no harm.
bool too_deep(std::string_view json) {
  int depth = 0, most = 0;
  for (const char c : json) {
    depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    most = std::max(most, depth);
  }
  return most > limits::kJsonDepth;
}

// The comment as an object where it is one, as text where not.
nlohmann::ordered_json comment_of(const MediaInfo& info) {
  if (too_deep(info.comment)) return info.comment;  // printing goes as deep as the text does
  auto parsed = nlohmann::ordered_json::parse(info.comment, nullptr, false);
  if (!parsed.is_object()) return info.comment;
  return parsed;
}

std::string shown_text(std::string_view text) {
  constexpr std::size_t kMax = 4000;  // bytes of a prompt
  return printable(text, kMax);
}

std::string line(std::string_view name, std::string_view value) {
  return fmt::format("  {:<20} {}\n", name, value);
}

std::string comment_text(const MediaInfo& info) {
  if (info.comment.empty()) return "\nit says nothing about how it was made\n";
  const nlohmann::ordered_json comment = comment_of(info);
  if (!comment.is_object()) return fmt::format("\ncomment\n  {}\n", shown_text(info.comment));
  std::string text = "\nmade with\n";
  for (const auto& [key, value] : comment.items()) {
    text += line(shown_text(key),
                 shown_text(value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return text;
}

}  // namespace

bool is_media_file(const std::string& path) {
  if (!is_file(path)) return false;
  const DiskFile file = DiskFile::open(path, DiskMode::buffered);
  std::array<std::byte, 16> first{};
  const std::size_t n = std::min<std::size_t>(first.size(), file.size());
  file.read(0, std::span(first).first(n));
  return looks_like_media(std::span(first).first(n));
}

std::string describe_media(const std::string& path, bool json) {
  const MediaInfo info = probe_media(path);
  const Bytes bytes{std::filesystem::file_size(path)};
  if (json) {
    nlohmann::ordered_json j = {{"path", path},
                                {"kind", info.still ? "image" : "video"},
                                {"bytes", bytes.count},
                                {"container", info.container},
                                {"codec", info.codec},
                                {"width", info.width},
                                {"height", info.height},
                                {"rotation", info.rotation},
                                {"mirrored", info.mirrored},
                                {"frames", info.frames},
                                {"fps", info.fps},
                                {"constant_rate", info.constant_rate},
                                {"duration", info.duration}};
    j["comment"] = info.comment.empty() ? nlohmann::ordered_json(nullptr) : comment_of(info);
    return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  std::string text = fmt::format("{}\n  {}, {} in {}, {}\n\ncontent\n", printable(path, 4096),
                                 info.still ? "image" : "video", info.codec, info.container, bytes);
  text += line("size", fmt::format("{} x {}", info.width, info.height));
  if (info.rotation != 0 || info.mirrored) {
    text += line("stored", fmt::format("turned by {} degrees{}", info.rotation,
                                       info.mirrored ? ", mirrored" : ""));
  }
  if (!info.still) {
    text += line("frames", fmt::format("{}", info.frames));
    text += line("rate", fmt::format("{:.6g} frames a second{}", info.fps,
                                     info.constant_rate ? "" : " on average, it varies"));
    text += line("duration", fmt::format("{:.3f} s", info.duration));
  }
  return text + comment_text(info);
}

}  // namespace ballast
