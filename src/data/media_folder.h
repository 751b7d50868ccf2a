#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_source.h"

namespace ballast::data {

// Captions of a folder of media, as diffusion-pipe reads them: clip.mp4 has clip.txt, or one
// captions.json holds {"clip.mp4": ["a caption", "another"]} for all.
struct CaptionOptions {
  std::string prefix = {};       // put before each caption
  std::int64_t shuffles = 0;     // n > 0: each becomes n captions, its parts in random order
  std::string delimiter = ", ";  // between the parts
  bool skip_empty = true;        // media without a caption are left out
};

struct MediaItem {
  std::string name;                   // of the file in its folder; ARCHIVE.tar/NAME of a member
  std::vector<std::string> captions;  // as they are encoded, at least one
  FileSource source = {};
};

// A media file of a folder, before captions are looked for.
struct MediaEntry {
  std::string name;  // as MediaItem::name
  std::string key;   // its name in captions.json: of a member the one inside the archive
  FileSource source;
  FileSource caption;  // where its .txt would be; of a member without one the path is ""
};

// The media files of a folder by name: regular files (links are followed) that are not hidden and
// none of .txt .npz .json .parquet .bak .db, and the members of .tar archives (io/tar_archive.h)
// that are none of these. Not recursive. What is left out for a reason worth telling becomes a
// note. Fails where the folder or an archive cannot be read.
std::vector<MediaEntry> media_entries(const std::string& folder, std::vector<std::string>& notes);

// Names of the files among which media_entries() finds media, archives included.
std::vector<std::string> media_names(const std::string& folder);

// Calls `visit` for each item by name; only one item's captions are in memory at a time, besides
// captions.json. A caption that is there and cannot be read is an Error that names the file.
void visit_media(const std::string& folder, const CaptionOptions& options,
                 const std::function<void(const MediaItem&)>& visit,
                 std::vector<std::string>& notes);

// The text of a caption file without white space around it. Fails where it is not UTF-8 or larger
// than 1 MiB.
std::string read_caption(const FileSource& source);

// Variant k of a caption: its parts in an order that depends on nothing but the item and k.
std::string shuffled_caption(std::string_view caption, std::string_view delimiter,
                             std::string_view item, std::int64_t k);

// Names of all regular files of a folder, sorted, hidden ones left out.
std::vector<std::string> file_names(const std::string& folder);
// In small letters or in capitals, as the trainers list them; endings without their dot.
bool ends_in(std::string_view name, std::span<const std::string_view> endings);
// The images of a folder that stands for a clip, as musubi-tuner takes them: paths, by name.
std::vector<std::string> image_paths(const std::string& folder);
inline constexpr std::array<std::string_view, 7> kMusubiImages = {"png", "jpg",  "jpeg", "webp",
                                                                  "bmp", "avif", "jxl"};
std::string_view stem_of(std::string_view name);  // "clip" of "clip.mp4"

}  // namespace ballast::data
