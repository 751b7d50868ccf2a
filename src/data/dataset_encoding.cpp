#include "data/dataset_encoding.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "core/error.h"
#include "core/progress.h"
#include "core/to_size.h"
#include "data/cached_dataset.h"
#include "data/clip_reader.h"
#include "data/media_file.h"
#include "data/other_caches.h"
#include "data/scan.h"

namespace ballast::data {
namespace {

std::string file_of(const EncodingSet& set, std::string_view name) {
  return fmt::format("{}/{}.safetensors", set.cache, name);
}

void write_rows(const EncodingSet& set, const TextWork& work, const TextRows& rows,
                const EncodingOptions& o) {
  const CachedText text{
      .tokens = rows.tokens, .dim = rows.dim, .rows = rows.values, .caption = work.caption};
  switch (set.layout) {
    case SampleLayout::ballast:
      return write_text_rows(file_of(set, work.name), o.request.cache_name, text, o.writing);
    case SampleLayout::musubi:
      return write_musubi_text(file_of(set, work.name), text, o.writing);
    case SampleLayout::embedding_pair:
      return write_pair_text(file_of(set, work.name), text, o.request.needs.text_len, o.writing);
  }
}

// Messages of readers begin with the path, and so does every line about a skipped file.
std::string without_path(std::string reason, const MediaWork& item) {
  const std::string path = printable(item.source.path) + ": ";
  if (reason.starts_with(path)) reason.erase(0, path.size());
  return reason;
}

// What becomes of one media file after another.
class MediaEncoder {
  // Faults of the media are the item's, all others are ours.
  template <class F>
  auto from_media(F&& f) {
    in_media_ = true;
    if constexpr (std::is_void_v<decltype(f())>) {
      f();
      in_media_ = false;
    } else {
      auto result = f();
      in_media_ = false;
      return result;
    }
  }

 public:
  MediaEncoder(const EncodingWork& work, const EncodingOptions& options, const EncodeVideo& video,
               const MediaAccess& access, EncodingReport& report)
      : work_(work), o_(options), video_(video), access_(access), report_(report) {}

  void encode(const MediaWork& item) {
    const EncodingSet& set = work_.sets[item.set];
    written_.clear();
    try {
      media_ = from_media([&] { return access_.open(item.source); });
      if (set.layout == SampleLayout::ballast) encode_buckets(set, item);
      if (set.layout == SampleLayout::musubi) encode_clips(set, item);
      if (set.layout == SampleLayout::embedding_pair) encode_whole(set, item);
    } catch (const Error& e) {
      const bool its_own = e.code() == ErrorCode::input || e.code() == ErrorCode::io;
      if (!in_media_ || !its_own) throw;
      in_media_ = false;
      // Where the system could not read it, it may be able to later.
      skip(set, item, e.what(), e.code() == ErrorCode::input);
    }
    media_.reset();
  }

 private:
  void skip(const EncodingSet& set, const MediaWork& item, std::string reason, bool for_good) {
    reason = without_path(std::move(reason), item);
    if (set.layout == SampleLayout::ballast && for_good) {
      // All or none of its buckets; without a size, so that no bucket is looked for.
      for (const std::string& path : written_) {
        std::error_code ignored;
        std::filesystem::remove(path, ignored);
      }
      report_.clips -= std::ssize(written_);
      LatentOrigin origin = item.origin;
      origin.media_size = {};
      write_dropped(set.cache, origin, printable(reason, 1000));
    }
    report_.skipped.push_back({item.source.path, std::move(reason)});
  }

  // diffusion-pipe: one clip per resolution.
  void encode_buckets(const EncodingSet& set, const MediaWork& item) {
    const bool video = is_video_name(item.name);
    LatentOrigin origin = item.origin;
    origin.media_size = media_size(media_->info(), video);
    std::vector<ClipSize> buckets = buckets_of(set.rules, origin.media_size);
    buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
    if (buckets.empty()) {
      write_dropped(set.cache, origin, "too short");
      report_.skipped.push_back({item.source.path, "too short"});
      return;
    }
    if (conditioned() && buckets.front().frames == 1) {
      return skip(set, item, "an image; image-to-video models are trained on clips", true);
    }
    for (const ClipSize& bucket : buckets) {
      origin.bucket = bucket;
      if (!o_.regenerate && look_at_latent(set.cache, origin, o_.request).fault.empty()) {
        ++report_.clips_there;
        continue;
      }
      ClipPlan plan = from_media([&] {
        return diffusion_pipe_clip(media_->info(), video, bucket, set.clip_mode, set.rules.fps);
      });
      const PixelSize size = plan.size;
      begin(std::move(plan));
      if (o_.request.needs.pixels) {
        copy_clip(set, origin, size, bucket.frames);
        written_.push_back(latent_path(set.cache, latent_name(item.name, bucket)));
        ++report_.clips;
        continue;
      }
      CachedLatent latent = encode_clip(size, bucket.frames);
      if (!item.mask.empty()) {
        mask_ = from_media([&] {
          return access_.mask(item.mask, {media_->info().width, media_->info().height}, size,
                              {latent.shape.width, latent.shape.height});
        });
        latent.mask = mask_;
      }
      write_latent(set.cache, origin, latent, o_.writing);
      written_.push_back(latent_path(set.cache, latent_name(item.name, bucket)));
      ++report_.clips;
    }
  }

  // musubi-tuner: as many clips as its rules cut.
  void encode_clips(const EncodingSet& set, const MediaWork& item) {
    ClipPlan plan = from_media(
        [&] { return musubi_media_clips(media_->info(), set.musubi, o_.request.needs.fps); });
    if (plan.clips.empty()) {
      report_.skipped.push_back({item.source.path, "too short"});
      return;
    }
    const PixelSize size = plan.size;
    const auto named = [&](const MediaClip& c) {
      const std::string& statistics = item.origin.statistics;
      if (!set.musubi.video) {
        return MusubiLatent{media_->info().width, media_->info().height, 0, statistics};
      }
      return MusubiLatent{size.width, size.height, c.clip.frames, statistics};
    };
    const auto path_of = [&](const MediaClip& c) {
      return file_of(set, musubi_latent_name(item.name, c.clip.start, named(c)));
    };
    const auto all = std::ssize(plan.clips);
    std::erase_if(plan.clips, [&](const MediaClip& c) {
      return is_current(path_of(c), SampleLayout::musubi, item, size, c.clip.frames);
    });
    report_.clips_there += all - std::ssize(plan.clips);
    // So that clips that are missing after a kill are missed without opening the file.
    const std::string mark = musubi_unfinished_mark(set.cache, item.name);
    std::error_code ignored;
    if (plan.clips.empty()) return static_cast<void>(std::filesystem::remove(mark, ignored));
    if (plan.clips.size() > 1) {
      std::filesystem::create_directories(set.cache, ignored);
      std::ofstream(mark, std::ios::app);
    }
    const std::vector<MediaClip> clips = plan.clips;
    from_media([&] { media_->begin(std::move(plan)); });
    for (const MediaClip& c : clips) {
      from_media([&] { media_->next(); });
      write_musubi_latent(path_of(c), item.origin.media, named(c), encode_clip(size, c.clip.frames),
                          o_.writing);
      ++report_.clips;
    }
    std::filesystem::remove(mark, ignored);
  }

  // Pairs: all frames, at the size the media has.
  void encode_whole(const EncodingSet& set, const MediaWork& item) {
    const MediaSize media = media_size(media_->info(), is_video_name(item.source.path));
    const std::int64_t step = o_.request.needs.pixel_multiple;
    const double pixels = static_cast<double>(media.width) * static_cast<double>(media.height);
    const double most = o_.max_megapixels * 1e6;
    const double scale = most > 0 && pixels > most ? std::sqrt(most / pixels) : 1.0;
    const auto side = [&](std::int64_t n) {
      return std::max(step,
                      static_cast<std::int64_t>(static_cast<double>(n) * scale) / step * step);
    };
    ClipPlan plan{.dialect = MediaDialect::diffusion_pipe,
                  .size = {side(media.width), side(media.height)}};
    const std::int64_t frames = clip_length(media.frames);
    const PixelSize size = plan.size;
    const std::string path = file_of(set, item.name + ".latent");
    if (is_current(path, SampleLayout::embedding_pair, item, size, frames)) {
      ++report_.clips_there;
      return;
    }
    MediaClip& clip = plan.clips.emplace_back(MediaClip{.clip = {0, frames}});
    clip.frames.resize(to_size(frames));
    std::iota(clip.frames.begin(), clip.frames.end(), 0);
    begin(std::move(plan));
    write_pair_latent(path, item.origin.media, encode_clip(size, frames),
                      o_.request.needs.of_pairs(), o_.writing);
    ++report_.clips;
  }

  bool is_current(const std::string& path, SampleLayout layout, const MediaWork& item,
                  PixelSize size, std::int64_t frames) const {
    if (o_.regenerate) return false;
    try {
      const auto file = CacheFile::open_if_there(path);
      if (!file) return false;
      const std::string_view source = file->metadata(kSourceKey);
      // A pair's latent is not normalised: statistics change nothing in it.
      const std::string_view statistics =
          layout == SampleLayout::musubi ? std::string_view(item.origin.statistics) : "";
      const bool same = source.empty() || o_.request.trust_cache ||
                        source == source_text(item.origin.media, statistics);
      return same && find_latent(*file, layout, o_.request.needs).shape ==
                         latent_shape(o_.request.needs, size.width, size.height, frames);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::input) throw;
      return false;  // broken or of another model: it is made again
    }
  }

  // The clip that media_ is at, as it is. Numbers of bytes come back exactly from -1 to 1.
  void copy_clip(const EncodingSet& set, const LatentOrigin& origin, PixelSize size,
                 std::int64_t frames) {
    const auto values = to_size(size.width * size.height * 3);
    std::vector<float> frame(values);
    std::vector<std::uint8_t> pixels;
    pixels.reserve(values * to_size(frames));
    for (std::int64_t f = 0; f < frames; ++f) {
      from_media([&] { media_->read(frame); });
      for (const float x : frame) {
        pixels.push_back(static_cast<std::uint8_t>(std::lround((x + 1.0f) * 127.5f)));
      }
    }
    write_pixels(set.cache, origin,
                 {.frames = frames, .height = size.height, .width = size.width, .pixels = pixels},
                 o_.writing.durability);
  }

  // To the first clip of the plan. A file that was described may still have no decoder.
  void begin(ClipPlan plan) {
    from_media([&] {
      media_->begin(std::move(plan));
      media_->next();
    });
  }

  bool conditioned() const { return o_.request.needs.conditioning_channels > 0; }

  // The clip that media_ is at. What it returns points into this object.
  CachedLatent encode_clip(PixelSize size, std::int64_t frames) {
    std::vector<float> first;
    const auto frame = to_size(size.width * size.height * 3);
    latent_ = video_(frames, size.height, size.width,
                     [&](std::int64_t at, std::int64_t, std::span<float> to) {
                       from_media([&] { media_->read(to); });
                       if (at == 0 && conditioned()) first.assign(to.begin(), to.begin() + frame);
                     });
    CachedLatent latent{.shape = latent_shape(o_.request.needs, size.width, size.height, frames),
                        .latent = latent_,
                        .fps = o_.request.needs.fps};
    if (latent.shape.elements() != std::ssize(latent_)) {
      fail(ErrorCode::input,
           "the VAE gives {} values for {} frames of {} x {} pixels, the model takes {}: "
           "it is another model's VAE",
           latent_.size(), frames, size.width, size.height, latent.shape.elements());
    }
    if (!conditioned()) return latent;
    // The first frame, all others 0, which is mid grey.
    conditioning_ = video_(frames, size.height, size.width,
                           [&](std::int64_t at, std::int64_t, std::span<float> to) {
                             std::fill(to.begin(), to.end(), 0.0f);
                             if (at == 0) std::copy(first.begin(), first.end(), to.begin());
                           });
    latent.conditioning_channels = latent.shape.channels;
    latent.conditioning = conditioning_;
    return latent;
  }

  const EncodingWork& work_;
  const EncodingOptions& o_;
  const EncodeVideo& video_;
  const MediaAccess& access_;
  EncodingReport& report_;
  std::unique_ptr<OpenMedia> media_;
  bool in_media_ = false;
  std::vector<std::string> written_;  // of the item at hand
  std::vector<float> latent_, conditioning_, mask_;
};

}  // namespace

ComingClips coming_clips(const EncodingWork& work, const DatasetRequest& request,
                         const MediaAccess& access) {
  ComingClips coming;
  Progress progress("looking into media", std::ssize(work.media));
  const auto add_shape = [&](std::uint32_t number, const LatentShape& shape) {
    const EncodingSet& set = work.sets[number];
    const bool musubi = set.layout == SampleLayout::musubi;
    const Bucket bucket{
        .shape = shape,
        .micro_batch = musubi ? set.musubi.batch_size : micro_batch_of(request, shape)};
    const bool known = std::ranges::any_of(coming.buckets, [&](const Bucket& b) {
      return b.shape == bucket.shape && b.micro_batch == bucket.micro_batch;
    });
    if (!known) coming.buckets.push_back(bucket);
  };
  const auto add = [&](std::uint32_t set, PixelSize size, std::int64_t frames) {
    const LatentShape shape = latent_shape(request.needs, size.width, size.height, frames);
    add_shape(set, shape);
    ++coming.files;
    coming.values +=
        shape.elements() / shape.channels * (shape.channels + request.needs.conditioning_channels);
  };
  for (const auto& [set, shape] : work.latents_done) add_shape(set, shape);
  // Why there will be none of it; empty: there will.
  const auto look = [&](const MediaWork& item) -> std::string {
    const EncodingSet& set = work.sets[item.set];
    const MediaInfo info = access.open(item.source)->info();
    if (set.layout == SampleLayout::musubi) {
      const ClipPlan plan = musubi_media_clips(info, set.musubi, request.needs.fps);
      for (const MediaClip& c : plan.clips) {
        add(item.set, plan.size, c.clip.frames);
      }
      return plan.clips.empty() ? "too short" : "";
    }
    const auto buckets = buckets_of(set.rules, media_size(info, is_video_name(item.name)));
    if (buckets.empty()) return "too short";
    if (request.needs.conditioning_channels > 0 && buckets.front().frames == 1) {
      return "an image; image-to-video models are trained on clips";
    }
    for (const ClipSize& b : buckets) add(item.set, {b.width, b.height}, b.frames);
    return "";
  };
  for (const MediaWork& item : work.media) {
    try {
      std::string reason = look(item);
      if (!reason.empty()) coming.skipped.push_back({item.source.path, std::move(reason)});
      coming.masks = coming.masks || !item.mask.empty();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::input && e.code() != ErrorCode::io) throw;
      coming.skipped.push_back({item.source.path, without_path(e.what(), item)});
    }
    progress.add();
  }
  return coming;
}

MediaAccess read_media() {
  return {.open = [](const FileSource& source) -> std::unique_ptr<OpenMedia> {
            return open_media(source);
          },
          .mask = read_loss_mask};
}

void encode_texts(const EncodingWork& work, const EncodingOptions& o, const EncodeText& text,
                  EncodingReport& report) {
  report.texts_there += work.texts_done;
  Progress progress("encoding captions", work.texts_done + std::ssize(work.texts),
                    Progress::Unit::count, work.texts_done);
  const auto batch = to_size(std::max<std::int64_t>(o.text_batch, 1));
  for (std::size_t at = 0; at < work.texts.size(); at += batch) {
    const auto part = std::span(work.texts).subspan(at, std::min(batch, work.texts.size() - at));
    std::vector<std::string> captions;
    for (const TextWork& t : part) captions.push_back(t.caption);
    const std::vector<TextRows> rows = text(captions);
    check(rows.size() == part.size(), "{} rows for {} captions", rows.size(), part.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      write_rows(work.sets[part[i].set], part[i], rows[i], o);
      ++report.texts;
      progress.add();
    }
    if (o.stop && o.stop()) return;
  }
}

void encode_media(const EncodingWork& work, const EncodingOptions& o, const EncodeVideo& video,
                  const MediaAccess& access, EncodingReport& report) {
  report.clips_there += work.media_done;
  Progress progress("encoding media", work.media_done + std::ssize(work.media),
                    Progress::Unit::count, work.media_done);
  MediaEncoder encoder(work, o, video, access, report);
  for (const MediaWork& item : work.media) {
    encoder.encode(item);
    progress.add();
    if (o.stop && o.stop()) return;
  }
}

}  // namespace ballast::data
