#include "data/media_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "core/error.h"
#include "core/random.h"
#include "data/shuffle.h"
#include "io/json_reader.h"
#include "io/tar_archive.h"
#include "io/utf8.h"
#include "memory/disk_file.h"

namespace ballast::data {
namespace {

constexpr std::uint64_t kCaptionBytes = 1 << 20;
constexpr std::uint64_t kCaptionsJsonBytes = 256 << 20;
constexpr std::size_t kFiles = 10'000'000;
constexpr std::array<std::string_view, 6> kNotMedia = {".txt",     ".npz", ".json",
                                                       ".parquet", ".bak", ".db"};

std::string read_caption_file(const FileSource& source, std::uint64_t most) {
  const std::string& path = source.path;
  const SourceFile file = source.open();
  if (file.size() > most) {
    fail(ErrorCode::input, "{}: {} bytes are too many for captions, at most {} are read", path,
         file.size(), most);
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  if (const auto bad = first_invalid_utf8(text)) {
    fail(ErrorCode::input, fmt::format("{}: byte {} of the caption is not UTF-8", path, *bad),
         {{"save the file as UTF-8", "captions are read in no other encoding"}});
  }
  return text;
}

std::string stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(kSpace) - first + 1));
}

using CaptionMap = std::map<std::string, std::vector<std::string>, std::less<>>;

std::vector<std::string> read_caption_list(JsonReader& json) {
  if (json.peek() == JsonReader::Kind::string) return {stripped(json.string())};
  std::vector<std::string> captions;
  json.open_array();
  while (json.next_element()) captions.push_back(stripped(json.string()));
  return captions;
}

CaptionMap read_captions_json(const std::string& path) {
  const std::string text = read_caption_file(path, kCaptionsJsonBytes);
  JsonReader json({.text = text, .path = path, .rule = "captions.json"});
  CaptionMap all;
  json.open_object();
  for (std::string_view key; json.next_key(key);) {
    const std::string name(key);
    if (!all.try_emplace(name, read_caption_list(json)).second) {
      json.fail_here(fmt::format("\"{}\" is there twice", printable(name)));
    }
  }
  json.finish();
  return all;
}

bool exists(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  return !error && std::filesystem::exists(status);
}

// The captions as written; empty when the item has none.
std::vector<std::string> raw_captions(const MediaEntry& entry,
                                      const std::optional<CaptionMap>& listed) {
  if (listed) {
    const auto found = listed->find(entry.key);
    return found == listed->end() ? std::vector<std::string>() : found->second;
  }
  if (entry.caption.path.empty()) return {};
  if (!entry.caption.is_member() && !exists(entry.caption.path)) return {};
  return {read_caption(entry.caption)};
}

bool is_other(std::string_view name) {
  const std::string_view suffix = name.substr(stem_of(name).size());
  return std::find(kNotMedia.begin(), kNotMedia.end(), suffix) != kNotMedia.end();
}

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

void add_members(const std::string& folder, const std::string& archive,
                 std::vector<MediaEntry>& entries, std::vector<std::string>& notes) {
  const std::string path = fmt::format("{}/{}", folder, archive);
  const TarListing listing = list_tar(DiskFile::open(path, DiskMode::buffered));
  const auto source_of = [&](const TarMember& m) {
    FileSource source(fmt::format("{}/{}", path, m.name));
    source.archive = path;
    source.offset = m.offset;
    source.bytes = m.bytes;
    return source;
  };
  std::map<std::string, const TarMember*, std::less<>> captions;  // by the name without .txt
  for (const TarMember& m : listing.members) {
    if (m.name.ends_with(".txt")) captions.emplace(m.name.substr(0, m.name.size() - 4), &m);
  }
  std::map<std::string, std::pair<std::string, std::int64_t>> left_out;  // reason: first, count
  const auto leave_out = [&](const std::string& name, const std::string& reason) {
    auto& seen = left_out[reason];
    if (seen.second++ == 0) seen.first = name;
  };
  for (const auto& [name, reason] : listing.left_out) leave_out(name, reason);
  for (const TarMember& m : listing.members) {
    if (last_name(m.name).starts_with('.') || is_other(last_name(m.name))) continue;
    if (m.name.ends_with(".tar")) {
      leave_out(m.name, "an archive inside an archive");
      continue;
    }
    MediaEntry& entry = entries.emplace_back();
    entry.name = fmt::format("{}/{}", archive, m.name);
    entry.key = m.name;
    entry.source = source_of(m);
    const std::size_t ending = m.name.size() - last_name(m.name).size();
    const std::string stem = m.name.substr(0, ending) + std::string(stem_of(last_name(m.name)));
    if (const auto found = captions.find(stem); found != captions.end()) {
      entry.caption = source_of(*found->second);
    }
  }
  for (const auto& [reason, seen] : left_out) {
    notes.push_back(fmt::format("{}: {} member{} left out ({}), {} first", path, seen.second,
                                seen.second == 1 ? " is" : "s are", reason, printable(seen.first)));
  }
}

}  // namespace

std::string read_caption(const FileSource& source) {
  return stripped(read_caption_file(source, kCaptionBytes));
}

std::string_view stem_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos || dot == 0 ? name : name.substr(0, dot);
}

bool ends_in(std::string_view name, std::span<const std::string_view> endings) {
  const std::string_view ending = name.substr(std::min(stem_of(name).size() + 1, name.size()));
  return std::ranges::any_of(endings, [&](std::string_view known) {
    return std::ranges::equal(known, ending) ||
           std::ranges::equal(known, ending,
                              [](char a, char b) { return (a >= 'a' ? a - 32 : a) == b; });
  });
}

std::vector<std::string> image_paths(const std::string& folder) {
  std::vector<std::string> paths;
  for (const std::string& name : file_names(folder)) {
    if (ends_in(name, kMusubiImages)) paths.push_back(fmt::format("{}/{}", folder, name));
  }
  return paths;
}

std::vector<std::string> file_names(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator at(folder, error);
  if (error) fail_io(folder, "list this folder", error.value());
  std::vector<std::string> names;
  for (const std::filesystem::directory_iterator end; at != end; at.increment(error)) {
    std::string name = at->path().filename().string();
    std::error_code ignored;  // a link that leads nowhere or in a circle is no file
    if (name.starts_with('.') || !at->is_regular_file(ignored)) continue;
    names.push_back(std::move(name));
    if (names.size() > kFiles) {
      fail(ErrorCode::input, "{}: more than {} files", folder, kFiles);
    }
    if (error) break;
  }
  if (error) fail_io(folder, "list this folder", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> media_names(const std::string& folder) {
  std::vector<std::string> names = file_names(folder);
  std::erase_if(names, is_other);
  return names;
}

std::vector<MediaEntry> media_entries(const std::string& folder, std::vector<std::string>& notes) {
  std::vector<MediaEntry> entries;
  for (const std::string& name : media_names(folder)) {
    if (name.ends_with(".tar")) {
      add_members(folder, name, entries, notes);
      continue;
    }
    entries.push_back({.name = name,
                       .key = name,
                       .source = fmt::format("{}/{}", folder, name),
                       .caption = fmt::format("{}/{}.txt", folder, stem_of(name))});
  }
  return entries;
}

void visit_media(const std::string& folder, const CaptionOptions& options,
                 const std::function<void(const MediaItem&)>& visit,
                 std::vector<std::string>& notes) {
  std::optional<CaptionMap> listed;
  const std::string json = folder + "/captions.json";
  if (exists(json)) listed = read_captions_json(json);
  std::int64_t without = 0;
  std::string first;
  for (MediaEntry& entry : media_entries(folder, notes)) {
    const std::string& name = entry.name;
    std::vector<std::string> raw = raw_captions(entry, listed);
    if (raw.empty()) {
      if (options.skip_empty) {
        if (without++ == 0) first = name;
        continue;
      }
      raw.emplace_back();
    }
    MediaItem item{.name = name, .captions = {}, .source = std::move(entry.source)};
    for (const std::string& caption : raw) {
      for (std::int64_t k = 0; k < std::max<std::int64_t>(options.shuffles, 1); ++k) {
        item.captions.push_back(options.prefix +
                                (options.shuffles > 0
                                     ? shuffled_caption(caption, options.delimiter, name, k)
                                     : caption));
      }
    }
    visit(item);
  }
  if (without > 0) {
    notes.push_back(fmt::format("{}: {} files without a caption are left out, {} first", folder,
                                without, printable(first)));
  }
}

std::string shuffled_caption(std::string_view caption, std::string_view delimiter,
                             std::string_view item, std::int64_t k) {
  if (delimiter.empty()) return std::string(caption);
  std::vector<std::string_view> parts;
  for (std::size_t at = 0;;) {
    const std::size_t end = caption.find(delimiter, at);
    parts.push_back(caption.substr(at, end == std::string_view::npos ? end : end - at));
    if (end == std::string_view::npos) break;
    at = end + delimiter.size();
  }
  shuffle(std::span(parts), random_source(hash_of(caption), "caption", k, item));
  std::string joined;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) joined += delimiter;
    joined += parts[i];
  }
  return joined;
}

}  // namespace ballast::data
