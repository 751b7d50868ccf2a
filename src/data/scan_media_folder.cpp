#include <algorithm>
#include <charconv>
#include <map>

#include "core/error.h"
#include "core/path_kind.h"
#include "data/encoding_work.h"
#include "data/latent_cache.h"
#include "data/scan.h"

namespace ballast::data {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

template <class T>
T parsed(std::string_view text) {
  T value{};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;  // 0 where it is no number: then no bucket fits
}

// What a file was made from, as far as the request tells it apart.
std::string stored_fingerprint(const CacheFile& file, const DatasetRequest& request) {
  const std::string_view stored = file.metadata("fingerprint");
  return request.any_statistics ? without_statistics(stored) : std::string(stored);
}

MediaSize source_size(const CacheFile& file) {
  return {.width = parsed<std::int64_t>(file.metadata("source_width")),
          .height = parsed<std::int64_t>(file.metadata("source_height")),
          .frames = parsed<std::int64_t>(file.metadata("source_frames")),
          .fps = parsed<double>(file.metadata("source_fps"))};
}

class MediaScan {
 public:
  MediaScan(const MediaDirectory& directory, const std::string& clip_mode,
            const DatasetRequest& request, DatasetContent& content)
      : directory_(directory),
        clip_mode_(clip_mode),
        request_(request),
        content_(content),
        cache_(cache_folder(directory.path, request.cache_name)),
        label_(label_of(directory.path, content)) {
    group_.folder = cache_;
    group_.repeats = directory.num_repeats;
    list_masks();
    if (content.work != nullptr) {
      set_ = static_cast<std::uint32_t>(content.work->sets.size());
      content.work->sets.push_back({.media = directory.path,
                                    .cache = cache_,
                                    .rules = directory.rules,
                                    .clip_mode = clip_mode});
    }
    if (!content.regenerate) list_latents();
  }

  void run() {
    if (request_.needs.pixels) {
      for (MediaEntry& e : media_entries(directory_.path, content_.notes)) {
        visit({.name = std::move(e.name), .captions = {""}, .source = std::move(e.source)});
      }
    } else {
      visit_media(
          directory_.path, directory_.captions, [&](const MediaItem& item) { visit(item); },
          content_.notes);
    }
    for (const auto& [reason, names] : dropped_) {
      content_.notes.push_back(fmt::format("{}: {} files are left out ({}), {} first",
                                           directory_.path, names.second, reason,
                                           printable(names.first)));
    }
    if (directory_.shuffle_files) shuffle_items(group_);
    find_empty_caption();
    content_.labels.push_back(label_);
    content_.groups.push_back(std::move(group_));
  }

 private:
  void list_latents() {
    if (!is_folder(cache_ + "/latents")) return;
    latents_ = file_names(cache_ + "/latents");
  }

  // Training without masks that were asked for would be another run.
  void list_masks() {
    const std::string& file = directory_.default_mask;
    const bool folder_there = directory_.mask_path.empty() || is_folder(directory_.mask_path);
    if (!folder_there || !(file.empty() || is_file(file))) {
      const std::string message =
          fmt::format("{} line {}: {} {} is not there", request_.path, directory_.line,
                      folder_there ? "default_mask_file" : "mask_path",
                      folder_there ? file : directory_.mask_path);
      if (!request_.planning) fail(ErrorCode::input, message);
      content_.notes.push_back(message);
    }
    if (directory_.mask_path.empty() || !folder_there) return;
    for (const std::string& name : file_names(directory_.mask_path)) {
      masks_.emplace(std::string(stem_of(name)), name);
    }
  }

  void missing(const MediaItem& item, std::string_view why) {
    if (content_.not_cached++ > 0) return;
    content_.first_missing =
        fmt::format("first {}/{}: {}", directory_.path, printable(item.name), why);
  }

  // Where the item's mask is; "": it has none.
  std::string mask_of(const MediaItem& item) const {
    const std::string_view name(item.name);
    const auto found = masks_.find(std::string(stem_of(name.substr(name.rfind('/') + 1))));
    if (found == masks_.end()) return directory_.default_mask;
    return fmt::format("{}/{}", directory_.mask_path, found->second);
  }

  // Any of the item's files tells how large the media was; the rules then say which ones must be
  // there.
  std::optional<CacheFile> first_file(const MediaItem& item) const {
    const std::string prefix = cache_key(item.name) + "@";
    auto at = std::lower_bound(latents_.begin(), latents_.end(), prefix);
    for (; at != latents_.end() && at->starts_with(prefix); ++at) {
      if (!at->ends_with(kSuffix)) continue;
      try {
        auto file = CacheFile::open_if_there(fmt::format("{}/latents/{}", cache_, *at));
        if (file && made_from_this(*file)) return file;
      } catch (const Error& e) {
        // A broken file is as good as none: it is made again.
        if (e.code() != ErrorCode::input) throw;
      }
    }
    return std::nullopt;
  }

  // The bucket is not known yet, so only the part of the fingerprint in front of it is compared.
  bool made_from_this(const CacheFile& file) const {
    if (request_.trust_cache) return true;
    const std::string whole = fingerprint(origin_);
    const std::string_view front = std::string_view(whole).substr(0, whole.rfind('|') + 1);
    return stored_fingerprint(file, request_).starts_with(front);
  }

  // A member is as old as its archive: times inside one are often all the same.
  std::optional<SourceStamp> stamp_of(const MediaItem& item) const {
    if (!item.source.is_member()) return data::stamp_of(directory_.path, item.name);
    auto stamp = data::stamp_of(item.source.archive);
    if (!stamp) return std::nullopt;
    stamp->name = item.name;
    stamp->bytes = item.source.bytes;
    return stamp;
  }

  void visit(const MediaItem& item) {
    const auto stamp = stamp_of(item);
    if (!stamp) return missing(item, "it vanished");
    const std::string mask = mask_of(item);
    origin_ = {.cache_name = request_.cache_name,
               .media = *stamp,
               .media_size = {},
               .mask = mask.empty() ? std::nullopt : data::stamp_of(mask),
               .clip_mode = clip_mode_,
               .bucket = {},
               .statistics = statistics_key(request_.needs.statistics)};
    std::vector<CachedItem> found;
    const State state = look_at(item, found);
    if (!state.missing.empty()) missing(item, state.missing);
    if (content_.work != nullptr) {
      if (!content_.regenerate) list_shapes(found);
      list_work(item, state, origin_.mask ? mask : "");
    }
    if (!state.missing.empty()) return;
    for (CachedItem& f : found) group_.items.push_back(std::move(f));
  }

  struct State {
    std::string missing = {};  // why the item is not cached
    bool latents = false;      // they are all there
    bool dropped = false;
  };

  State look_at(const MediaItem& item, std::vector<CachedItem>& found) {
    const std::optional<CacheFile> first = first_file(item);
    if (!first) return {.missing = "no cached latent was made from this file"};
    const MediaSize size = source_size(*first);
    std::vector<ClipSize> buckets = buckets_of(directory_.rules, size);
    // Two resolutions may round to one size: it is one sample.
    buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
    if (buckets.empty()) {
      if (size.width < 1 && first->metadata("kind") != "dropped") {
        return {.missing = "its cached latent does not say how large the media was"};
      }
      const std::string_view stored = first->metadata("reason");
      const std::string reason = stored.empty() ? "too short" : printable(stored);
      auto& names = dropped_[reason];
      if (names.second++ == 0) names.first = item.name;
      if (content_.work != nullptr) {
        content_.work->skipped.push_back({directory_.path + "/" + item.name, reason});
      }
      return {.latents = true, .dropped = true};
    }
    State state;
    for (const ClipSize& bucket : buckets) {
      origin_.bucket = bucket;
      const LatentState latent = look_at_latent(cache_, origin_, request_);
      if (!latent.fault.empty()) return {.missing = latent.fault};
      for (std::size_t c = 0; c < item.captions.size(); ++c) {
        const std::string name = latent_name(item.name, bucket);
        const std::string text = text_name(item.name, static_cast<std::int64_t>(c));
        if (state.missing.empty()) state.missing = text_fault(text, item.captions[c]);
        found.push_back({.id = fmt::format("{}/{}#{}", label_, name, c),
                         .latent = fmt::format("latents/{}.safetensors", name),
                         .text = fmt::format("text/{}.safetensors", text),
                         .shape = latent.shape,
                         .mask = latent.mask});
      }
    }
    state.latents = true;
    return state;
  }

  // What is wrong with the cached rows of a caption, empty when nothing is.
  std::string text_fault(const std::string& name, std::string_view caption) const {
    return text_file_fault(text_path(cache_, name), fmt::format("text/{}", name), caption);
  }

  std::string text_file_fault(const std::string& path, std::string_view shown,
                              std::string_view caption) const {
    if (request_.needs.pixels) return {};  // nobody reads it
    try {
      const auto rows = CacheFile::open_if_there(path);
      if (!rows) return fmt::format("{} is not there", shown);
      find_text(*rows, SampleLayout::ballast, request_.needs);
      if (!request_.trust_cache &&
          rows->metadata("fingerprint") != text_fingerprint(request_.cache_name, caption)) {
        return fmt::format("{} is of another caption", shown);
      }
    } catch (const Error& e) {
      if (e.code() != ErrorCode::input) throw;
      return e.what();  // broken or half there: as good as not cached
    }
    return {};
  }

  void list_shapes(const std::vector<CachedItem>& found) {
    auto& all = content_.work->latents_done;
    for (const CachedItem& f : found) {
      const auto one = std::pair(set_, f.shape);
      if (std::ranges::find(all, one) == all.end()) all.push_back(one);
    }
  }

  void list_work(const MediaItem& item, const State& state, const std::string& mask) {
    EncodingWork& work = *content_.work;
    if (state.dropped) return;
    for (std::size_t c = 0; c < item.captions.size(); ++c) {
      const std::string name = text_name(item.name, static_cast<std::int64_t>(c));
      if (request_.needs.pixels) break;
      if (!content_.regenerate && text_fault(name, item.captions[c]).empty()) {
        ++work.texts_done;
      } else {
        work.texts.push_back({set_, "text/" + name, item.captions[c]});
      }
    }
    if (state.latents && !content_.regenerate) {
      ++work.media_done;
      return;
    }
    LatentOrigin origin = origin_;
    origin.bucket = {};
    work.media.push_back({.set = set_,
                          .source = item.source,
                          .name = item.name,
                          .origin = std::move(origin),
                          .mask = mask});
  }

  // Only a run that drops captions needs it, and read() says so.
  void find_empty_caption() {
    if (request_.needs.pixels) return;
    const bool there = text_file_fault(empty_caption_path(cache_), "empty_caption", "").empty();
    if (there) group_.empty_caption = "empty_caption.safetensors";
    if (content_.work == nullptr) return;
    if (there && !content_.regenerate) {
      ++content_.work->texts_done;
    } else {
      content_.work->texts.push_back({set_, "empty_caption", ""});
    }
  }

  const MediaDirectory& directory_;
  const std::string& clip_mode_;
  const DatasetRequest& request_;
  DatasetContent& content_;
  std::string cache_, label_;
  ItemGroup group_;
  std::uint32_t set_ = 0;                     // of the work
  LatentOrigin origin_;                       // of the item being looked at
  std::vector<std::string> latents_;          // names of files, sorted
  std::map<std::string, std::string> masks_;  // stem: file
  std::map<std::string, std::pair<std::string, std::int64_t>> dropped_;  // reason: first, count
};

}  // namespace

LatentState look_at_latent(const std::string& cache, const LatentOrigin& origin,
                           const DatasetRequest& request) {
  const ClipSize& bucket = origin.bucket;
  const std::string name = latent_name(origin.media.name, bucket);
  try {
    const auto file = CacheFile::open_if_there(latent_path(cache, name));
    if (!file) return {.fault = fmt::format("latents/{} is not there", name)};
    if (!request.trust_cache && stored_fingerprint(*file, request) != fingerprint(origin)) {
      return {.fault = fmt::format("latents/{} was made from something else", name)};
    }
    const LatentTensors tensors = find_latent(*file, SampleLayout::ballast, request.needs);
    const LatentShape expected =
        latent_shape(request.needs, bucket.width, bucket.height, bucket.frames);
    if (tensors.shape != expected) {
      return {.fault = fmt::format("latents/{} has another shape", name)};
    }
    return {.fault = {}, .shape = tensors.shape, .mask = tensors.mask != nullptr};
  } catch (const Error& e) {
    if (e.code() != ErrorCode::input) throw;
    return {.fault = e.what()};  // broken or half there: as good as not cached
  }
}

void scan_media_folder(const MediaDirectory& directory, const std::string& clip_mode,
                       const DatasetRequest& request, DatasetContent& content) {
  MediaScan(directory, clip_mode, request, content).run();
}

}  // namespace ballast::data
