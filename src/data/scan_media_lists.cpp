#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "core/error.h"
#include "core/path_kind.h"
#include "data/encoding_work.h"
#include "data/other_caches.h"
#include "data/scan.h"
#include "io/json_reader.h"
#include "io/limits.h"
#include "memory/disk_file.h"
#include "memory/text_file.h"

namespace ballast::data {
namespace {

constexpr std::size_t kMaxMedia = 10'000'000;
// File systems take names of 255 bytes; the longest suffix is _00000-081_0832x0480_wan.safetensors,
// whose numbers may have more digits.
constexpr std::size_t kLongestStem = 255 - 45;
constexpr std::array<std::string_view, 10> kMusubiVideos = {"mp4", "webm", "avi", "mkv", "mov",
                                                            "flv", "wmv",  "m4v", "mpg", "mpeg"};
constexpr std::array<std::string_view, 9> kPairMedia = {"mp4", "avi",  "mov",  "mkv", "png",
                                                        "jpg", "jpeg", "webp", "webm"};

struct Listed {
  std::string path, caption;
};

// {"video_path": ..., "caption": ...} line by line.
std::vector<Listed> read_lines(const MusubiDataset& d) {
  LineReader reader = LineReader::open(
      d.media, {.line_bytes = limits::kMediaListLine, .file_bytes = limits::kMediaListBytes});
  const std::string_view key = d.video ? "video_path" : "image_path";
  std::vector<Listed> all;
  for (FileLine line; reader.next(line);) {
    if (line.text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    JsonReader json(
        {.text = line.text, .path = d.media, .rule = "JSON lines", .file_offset = line.begin});
    Listed item;
    bool path = false, caption = false;
    json.open_object();
    for (std::string_view k; json.next_key(k);) {
      if (k == key) {
        const std::string written(json.string());
        if (written.empty() || written.find('\0') != std::string::npos) {
          json.fail_value("expected the path of a file");
        }
        item.path = resolve_path(written, d.media);
        path = true;
      } else if (k == "caption") {
        item.caption = json.string();
        caption = true;
      } else {
        json.skip();
      }
    }
    json.finish();
    if (!path || !caption) json.fail_here(fmt::format("expected \"{}\" and \"caption\"", key));
    all.push_back(std::move(item));
  }
  return all;
}

// strict: a video without a caption is an error, as musubi-tuner has it.
std::vector<Listed> list_folder(const MusubiDataset& d, bool strict,
                                std::vector<std::string>& notes) {
  if (d.caption_extension.empty()) {
    fail(ErrorCode::input, "the dataset on line {} needs a caption_extension, for example \".txt\"",
         d.line);
  }
  std::vector<Listed> all;
  std::int64_t without = 0;
  for (const std::string& name : file_names(d.media)) {
    const bool wanted = d.video ? ends_in(name, kMusubiVideos) : ends_in(name, kMusubiImages);
    if (!wanted) continue;
    const std::string text = fmt::format("{}/{}{}", d.media, stem_of(name), d.caption_extension);
    if (!path_exists(text)) {
      if (d.video && strict) {
        fail(ErrorCode::input, "{}/{}: there is no caption {}", d.media, printable(name),
             printable(text));
      }
      ++without;
      continue;
    }
    all.push_back({fmt::format("{}/{}", d.media, name), read_caption(text)});
  }
  if (without > 0) {
    notes.push_back(fmt::format("{}: {} {} without a caption are left out", d.media, without,
                                d.video ? "videos" : "images"));
  }
  return all;
}

// The rows of a caption that are there and, where the file says of what they are, are of this one.
bool has_text(const std::string& path, SampleLayout layout, std::string_view caption,
              const DatasetRequest& request) {
  try {
    const auto file = CacheFile::open_if_there(path);
    if (!file) return false;
    find_text(*file, layout, request.needs);
    const std::string_view stored = file->metadata("caption1");
    return request.trust_cache || stored.empty() || stored == caption;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::input) throw;
    return false;
  }
}

// The latent of the first of a media file's clips, where the cache has them.
std::optional<LatentShape> first_musubi_clip(const MusubiDataset& d, const std::string& stem,
                                             const std::string& source,
                                             std::span<const std::string> cached,
                                             const DatasetRequest& request) {
  if (path_exists(musubi_unfinished_mark(d.cache, stem))) return std::nullopt;
  const std::string prefix = stem + "_";
  for (auto at = std::ranges::lower_bound(cached, prefix);
       at != cached.end() && at->starts_with(prefix); ++at) {
    if (musubi_latent_stem(*at, d.video) != stem) continue;
    try {
      const auto file = CacheFile::open_if_there(fmt::format("{}/{}", d.cache, *at));
      if (!file) continue;
      const LatentTensors found = find_latent(*file, SampleLayout::musubi, request.needs);
      const std::string_view stored = file->metadata(kSourceKey);
      if (stored.empty() || request.trust_cache || stored == source) return found.shape;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::input) throw;
      // Broken or of another model: it is made again.
    }
    return std::nullopt;
  }
  return std::nullopt;
}

class WorkList {
 public:
  WorkList(EncodingSet set, const DatasetRequest& request, DatasetContent& content)
      : work_(*content.work), request_(request), regenerate_(content.regenerate) {
    number_ = static_cast<std::uint32_t>(work_.sets.size());
    work_.sets.push_back(std::move(set));
  }

  void add_text(std::string name, std::string caption) {
    const EncodingSet& set = work_.sets[number_];
    const std::string path = fmt::format("{}/{}.safetensors", set.cache, name);
    if (!regenerate_ && has_text(path, set.layout, caption, request_)) {
      ++work_.texts_done;
    } else {
      work_.texts.push_back({number_, std::move(name), std::move(caption)});
    }
  }

  void add_media(const std::string& path, std::string name) {
    const auto stamp = stamp_of(path);
    if (!stamp) {
      work_.skipped.push_back(
          {path, is_folder(path) ? "there is no image in this folder" : "there is no such file"});
      return;
    }
    LatentOrigin origin;
    origin.cache_name = request_.cache_name;
    origin.media = *stamp;
    origin.statistics = statistics_key(request_.needs.statistics);
    work_.media.push_back(
        {.set = number_, .source = path, .name = std::move(name), .origin = std::move(origin)});
  }

  void add_done(const LatentShape& shape) {
    ++work_.media_done;
    const auto one = std::pair(number_, shape);
    auto& all = work_.latents_done;
    if (std::ranges::find(all, one) == all.end()) all.push_back(one);
  }

  void skip(const std::string& path, std::string reason) {
    work_.skipped.push_back({path, std::move(reason)});
  }

  // Whether files of the cache can have this name with a suffix; else the media file is skipped.
  bool takes_name(const std::string& path, std::string_view stem) {
    const std::size_t bytes = stem.size() - (stem.rfind('/') + 1);
    if (bytes <= kLongestStem) return true;
    skip(path,
         fmt::format("its name has {} bytes; with more than {} the names of its cache are too "
                     "long for file systems",
                     bytes, kLongestStem));
    return false;
  }

 private:
  EncodingWork& work_;
  const DatasetRequest& request_;
  bool regenerate_;
  std::uint32_t number_ = 0;
};

}  // namespace

void list_musubi_work(const MusubiDataset& d, const DatasetRequest& request,
                      DatasetContent& content) {
  const bool missing_only = content.musubi == MusubiMedia::missing_only;
  // Training needs the caches alone.
  if (missing_only && !path_exists(d.media)) return;
  const std::vector<Listed> items =
      is_folder(d.media) ? list_folder(d, !missing_only, content.notes) : read_lines(d);
  std::vector<std::string> cached;
  if (missing_only && !content.regenerate && is_folder(d.cache)) cached = file_names(d.cache);
  WorkList list({.layout = SampleLayout::musubi, .media = d.media, .cache = d.cache, .musubi = d},
                request, content);
  std::map<std::string, std::string> seen;  // stem: path
  for (const Listed& item : items) {
    const std::string stem(stem_of(std::filesystem::path(item.path).filename().string()));
    if (!list.takes_name(item.path, stem)) continue;
    const auto [other, first] = seen.emplace(stem, item.path);
    if (!first) {
      list.skip(item.path, fmt::format("its cache would have the names of that of {}",
                                       printable(other->second)));
      continue;
    }
    list.add_text(stem + "_wan_te", item.caption);
    const auto stamp = cached.empty() ? std::nullopt : stamp_of(item.path);
    const auto clip =
        stamp ? first_musubi_clip(d, stem,
                                  source_text(*stamp, statistics_key(request.needs.statistics)),
                                  cached, request)
              : std::nullopt;
    if (clip) {
      list.add_done(*clip);
    } else {
      list.add_media(item.path, stem);
    }
  }
}

void list_embedding_pair_work(const std::string& folder, const DatasetRequest& request,
                              DatasetContent& content) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator at(folder, error);
  if (error) fail_io(folder, "list this folder", error.value());
  std::vector<std::string> names;
  // Links to folders are not followed, so a circle of them ends.
  for (const std::filesystem::recursive_directory_iterator end; at != end; at.increment(error)) {
    std::error_code ignored;
    const std::string name = at->path().filename().string();
    if (at->is_regular_file(ignored) && !name.starts_with('.')) {
      names.push_back(at->path().lexically_relative(folder).string());
    }
    if (names.size() > kMaxMedia) {
      fail(ErrorCode::input, "{}: more than {} files", folder, kMaxMedia);
    }
    if (error) break;
  }
  if (error) fail_io(folder, "list this folder", error.value());
  std::sort(names.begin(), names.end());
  WorkList list({.layout = SampleLayout::embedding_pair, .media = folder, .cache = folder}, request,
                content);
  std::map<std::string, std::string> seen;  // stem: media
  for (const std::string& name : names) {
    const std::string stem(stem_of(name));
    const std::string path = fmt::format("{}/{}", folder, name);
    const bool text = name.ends_with(".txt");
    if (!text && !ends_in(name, kPairMedia)) continue;
    if (!list.takes_name(path, stem)) continue;
    if (text) {
      list.add_text(stem, read_caption(path));
      continue;
    }
    const auto [other, first] = seen.emplace(stem, name);
    if (first) {
      list.add_media(path, stem);
    } else {
      list.skip(path, fmt::format("its latent would have the name of that of {}",
                                  printable(other->second)));
    }
  }
}

}  // namespace ballast::data
