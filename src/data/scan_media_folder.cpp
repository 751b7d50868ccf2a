#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "core/error.h"
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
    list_latents();
    list_masks();
  }

  void run() {
    visit_media(
        directory_.path, directory_.captions, [&](const MediaItem& item) { visit(item); },
        content_.notes);
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
    std::error_code ignored;
    if (!std::filesystem::is_directory(cache_ + "/latents", ignored)) return;
    latents_ = file_names(cache_ + "/latents");
  }

  void list_masks() {
    if (directory_.mask_path.empty()) return;
    for (const std::string& name : file_names(directory_.mask_path)) {
      masks_.emplace(std::string(stem_of(name)), name);
    }
  }

  void missing(const MediaItem& item, std::string_view why) {
    if (content_.not_cached++ > 0) return;
    content_.first_missing =
        fmt::format("first {}/{}: {}", directory_.path, printable(item.name), why);
  }

  std::optional<SourceStamp> mask_of(const MediaItem& item) const {
    const auto found = masks_.find(std::string(stem_of(item.name)));
    if (found != masks_.end()) return stamp_of(directory_.mask_path, found->second);
    if (directory_.default_mask.empty()) return std::nullopt;
    const std::filesystem::path path(directory_.default_mask);
    return stamp_of(path.has_parent_path() ? path.parent_path().string() : ".",
                    path.filename().string());
  }

  // Any of the item's files tells how large the media was; the rules then say which ones must be
  // there.
  std::optional<CacheFile> first_file(const MediaItem& item) const {
    const std::string prefix = cache_key(item.name) + "@";
    auto at = std::lower_bound(latents_.begin(), latents_.end(), prefix);
    for (; at != latents_.end() && at->starts_with(prefix); ++at) {
      if (!at->ends_with(kSuffix)) continue;
      try {
        CacheFile file = CacheFile::open(fmt::format("{}/latents/{}", cache_, *at));
        if (made_from_this(file)) return file;
      } catch (const Error&) {
        // A broken file is as good as none: it is made again.
      }
    }
    return std::nullopt;
  }

  // The bucket is not known yet, so only the part of the fingerprint in front of it is compared.
  bool made_from_this(const CacheFile& file) const {
    if (request_.trust_cache) return true;
    const std::string whole = fingerprint(origin_);
    const std::string_view front = std::string_view(whole).substr(0, whole.rfind('|') + 1);
    return file.metadata("fingerprint").starts_with(front);
  }

  void visit(const MediaItem& item) {
    const auto stamp = stamp_of(directory_.path, item.name);
    if (!stamp) return missing(item, "it vanished");
    origin_ = {.cache_name = request_.cache_name,
               .media = *stamp,
               .media_size = {},
               .mask = mask_of(item),
               .clip_mode = clip_mode_,
               .bucket = {}};
    const std::optional<CacheFile> first = first_file(item);
    if (!first) return missing(item, "no cached latent was made from this file");
    const MediaSize size = source_size(*first);
    std::vector<ClipSize> buckets = buckets_of(directory_.rules, size);
    // Two resolutions may round to one size: it is one sample.
    buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
    if (buckets.empty()) {
      if (size.width < 1 && first->metadata("kind") != "dropped") {
        return missing(item, "its cached latent does not say how large the media was");
      }
      const std::string_view reason = first->metadata("reason");
      auto& names = dropped_[reason.empty() ? "too short" : printable(reason)];
      if (names.second++ == 0) names.first = item.name;
      return;
    }
    std::vector<CachedItem> found;
    for (const ClipSize& bucket : buckets) {
      if (const std::string why = add(item, bucket, found); !why.empty()) return missing(item, why);
    }
    for (CachedItem& f : found) group_.items.push_back(std::move(f));
  }

  // Appends the item at one bucket, once per caption. Returns what is wrong, empty when nothing.
  std::string add(const MediaItem& item, const ClipSize& bucket, std::vector<CachedItem>& found) {
    const std::string name = latent_name(item.name, bucket);
    try {
      const CacheFile file = CacheFile::open(latent_path(cache_, name));
      origin_.bucket = bucket;
      if (!request_.trust_cache && file.metadata("fingerprint") != fingerprint(origin_)) {
        return fmt::format("latents/{} was made from something else", name);
      }
      const LatentTensors tensors = find_latent(file, group_.layout, request_.needs);
      const LatentShape expected =
          latent_shape(request_.needs, bucket.width, bucket.height, bucket.frames);
      if (tensors.shape != expected) return fmt::format("latents/{} has another shape", name);
      for (std::size_t c = 0; c < item.captions.size(); ++c) {
        const std::string text = text_name(item.name, static_cast<std::int64_t>(c));
        const CacheFile rows = CacheFile::open(text_path(cache_, text));
        find_text(rows, group_.layout, request_.needs);
        if (!request_.trust_cache && rows.metadata("fingerprint") !=
                                         text_fingerprint(request_.cache_name, item.captions[c])) {
          return fmt::format("text/{} is of another caption", text);
        }
        found.push_back({.id = fmt::format("{}/{}#{}", label_, name, c),
                         .latent = fmt::format("latents/{}.safetensors", name),
                         .text = fmt::format("text/{}.safetensors", text),
                         .shape = tensors.shape,
                         .mask = tensors.mask != nullptr});
      }
    } catch (const Error& e) {
      return e.what();  // broken or half there: as good as not cached
    }
    return {};
  }

  void find_empty_caption() {
    try {
      const CacheFile rows = CacheFile::open(empty_caption_path(cache_));
      find_text(rows, group_.layout, request_.needs);
      if (request_.trust_cache ||
          rows.metadata("fingerprint") == text_fingerprint(request_.cache_name, "")) {
        group_.empty_caption = "empty_caption.safetensors";
      }
    } catch (const Error&) {
      // Not there: only a run that drops captions needs it, and read() says so.
    }
  }

  const MediaDirectory& directory_;
  const std::string& clip_mode_;
  const DatasetRequest& request_;
  DatasetContent& content_;
  std::string cache_, label_;
  ItemGroup group_;
  LatentOrigin origin_;                       // of the item being looked at
  std::vector<std::string> latents_;          // names of files, sorted
  std::map<std::string, std::string> masks_;  // stem: file
  std::map<std::string, std::pair<std::string, std::int64_t>> dropped_;  // reason: first, count
};

}  // namespace

void scan_media_folder(const MediaDirectory& directory, const std::string& clip_mode,
                       const DatasetRequest& request, DatasetContent& content) {
  MediaScan(directory, clip_mode, request, content).run();
}

}  // namespace ballast::data
