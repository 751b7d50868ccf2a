#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "data/bucket_sizes.h"
#include "data/dataset.h"
#include "io/atomic_file.h"
#include "io/safetensors_writer.h"

namespace ballast::data {

// Ballast's own cache of encoded samples. A cache is a folder:
//
//   latents/NAME.safetensors   latent [C, F, H, W]; conditioning [K, F, H, W] and mask [H, W] where
//                              the sample has them; for an autoencoder pixels [F, H, W, 3], u8
//   text/NAME.safetensors      text [tokens, dim]; for an autoencoder there is none
//   empty_caption.safetensors  text [tokens, dim] of the empty caption
//
// latents and text in f32, bf16 or f16. Each file is written whole or not at all, so an interrupted
// run loses the sample it was at and nothing else. Beside the tensors a file says what it was made
// from; a file that was made from something else than what is there now counts as absent. The
// metadata has the checksum of each tensor (SafetensorsWriter::add_checksums), which is compared
// when the tensor is read; files of version 0.1 and of other trainers have none.
//
// The cache of a folder of media is FOLDER/cache/MODEL, MODEL being the model's cache name
// ("wan2.2_i2v"). Clip clip.mp4 in the bucket of 512 x 512 pixels and 21 frames is
// latents/clip.mp4@512x512x21, its captions are text/clip.mp4#0, #1, ... A folder that only holds
// samples and no media (a ready-made cache) has the same name in both places: NAME is the id.

inline constexpr std::string_view kCacheFormat = "1";

// A file that a cached one was made from. Its folder is not part of it: a dataset that is moved
// keeps its cache.
struct SourceStamp {
  std::string name;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;

  friend bool operator==(const SourceStamp&, const SourceStamp&) = default;
};

// Of the file as it is now; nullopt when there is no such regular file. Of a folder: its images
// together, where it has any.
std::optional<SourceStamp> stamp_of(const std::string& folder, const std::string& name);
std::optional<SourceStamp> stamp_of(const std::string& path);

// Everything that decides the bytes of a latent file made from media.
struct LatentOrigin {
  std::string cache_name;  // of the model
  SourceStamp media;
  MediaSize media_size;  // as decoded: the bucket follows from it
  std::optional<SourceStamp> mask;
  std::string clip_mode = "single_beginning";
  ClipSize bucket;
  std::string statistics = {};  // statistics_key() of what the latent is normalised with
};

// Names statistics that are not the released model's own; "" for those.
std::string statistics_key(const VaeStatistics& statistics);

// As it is written into the file and compared with: "1|wan|clip.mp4|1234|...".
std::string fingerprint(const LatentOrigin& origin);
// A stored fingerprint without its statistics.
std::string without_statistics(std::string_view fingerprint);
std::string text_fingerprint(std::string_view cache_name, std::string_view caption);

struct CachedLatent {
  LatentShape shape;
  std::span<const float> latent;
  // [conditioning_channels, frames, height, width]: for I2V the latent of the first frame and grey;
  // the four mask channels are added when it is read, or may be given (4 more channels).
  std::int64_t conditioning_channels = 0;
  std::span<const float> conditioning = {};
  std::span<const float> mask = {};  // [height, width] loss weight
  double fps = 16;
};

// A clip as it is, for an autoencoder: u8 [frames, height, width, 3].
struct CachedPixels {
  std::int64_t frames = 0, height = 0, width = 0;
  std::span<const std::uint8_t> pixels;
};

struct CachedText {
  std::int64_t tokens = 0, dim = 0;
  std::span<const float> rows;
  std::string_view caption = {};
};

// Where the pieces of a cache are.
std::string cache_folder(const std::string& media_folder, std::string_view cache_name);
// A file name's part for any text: itself where it can be one, else shortened with its hash.
std::string cache_key(std::string_view name);
std::string latent_name(std::string_view media_name, const ClipSize& bucket);
std::string text_name(std::string_view media_name, std::int64_t caption);
// The latent file of an item that the rules drop: it holds no tensor, only why.
std::string dropped_name(std::string_view media_name);
std::string latent_path(const std::string& cache, std::string_view name);
std::string text_path(const std::string& cache, std::string_view name);
std::string empty_caption_path(const std::string& cache);

// Writers make the folders that are missing. `store` is f32, bf16 or f16.
struct CacheWriting {
  DType store = DType::f32;
  Durability durability = Durability::power_cut;
};
void write_latent(const std::string& cache, const LatentOrigin& origin, const CachedLatent& latent,
                  CacheWriting how = {});
void write_pixels(const std::string& cache, const LatentOrigin& origin, const CachedPixels& clip,
                  Durability durability = Durability::power_cut);
// `reason` is what the user is told: "too short".
void write_dropped(const std::string& cache, const LatentOrigin& origin, std::string_view reason);
void write_text(const std::string& cache, std::string_view cache_name, std::string_view name,
                const CachedText& text, CacheWriting how = {});
// The same by the path of the file.
void write_text_rows(const std::string& path, std::string_view cache_name, const CachedText& text,
                     CacheWriting how = {});

// The parts of a writer: a tensor of `values`, which must stay until the file is written, and the
// file with the folders above it, in which every tensor has its checksum.
void add_values(SafetensorsWriter& writer, std::string name, const Shape& shape,
                std::span<const float> values, DType store);
void write_cache_file(const std::string& path, SafetensorsWriter writer, Durability durability);

// One sample of a ready-made cache: latent and text under one id, which is a file name ("clip-07").
void write_cached_sample(const std::string& cache, std::string_view id, const CachedLatent& latent,
                         const CachedText& text, CacheWriting how = {});

}  // namespace ballast::data
