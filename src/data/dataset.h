#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "io/vae_statistics.h"

namespace ballast::data {

// Frames, rows and columns of a latent. Samples of one shape can share a step.
struct LatentShape {
  std::int64_t channels = 0, frames = 0, height = 0, width = 0;

  std::int64_t elements() const { return channels * frames * height * width; }
  friend auto operator<=>(const LatentShape&, const LatentShape&) = default;
};

// What the model that is trained wants of each sample.
struct ModelNeeds {
  std::int64_t latent_channels = 16;
  std::int64_t conditioning_channels = 0;  // 20 for I2V: 4 mask channels, 16 of the latent image
  std::int64_t text_len = 512, text_dim = 4096;
  std::int64_t pixel_multiple = 16;  // of bucket sizes; 32 for TI2V-5B
  std::int64_t spatial_stride = 8;   // pixels per latent cell
  std::int64_t temporal_stride = 4;  // images per latent frame, behind the first
  double fps = 16;
  // Clips themselves are wanted, as [frames, height, width, 3] from -1 to 1, and no captions: an
  // autoencoder is trained. Strides are 1 then and channels 3.
  bool pixels = false;
  // What the VAE normalises latents with where that is not the released model's own; else empty.
  VaeStatistics statistics = {};
  // The same of the released model whose latents stand in pairs (X.latent.safetensors) as the VAE
  // gave them. Empty: pairs cannot be read without `statistics`.
  LatentStatistics pair_statistics = {};

  LatentStatistics of_pairs() const {
    return statistics.empty() ? pair_statistics : statistics.view();
  }
};

// One cached clip with one caption. Repeats are not listed: an epoch names the sample again.
struct Sample {
  std::string id;        // stable and unique: what the run log and resume name it by
  std::uint32_t bucket;  // index into Dataset::buckets()
};

struct Bucket {
  LatentShape shape;
  std::int64_t micro_batch = 1;
  std::int64_t items = 0;  // of the bucket in one epoch: repeats counted, those left over not
};

// One optimizer step's samples, in order; all of one bucket. As many as micro_batch * accumulation,
// fewer in the last step of a bucket where the trainer's rule keeps what is left over.
struct StepBatch {
  std::uint32_t bucket = 0;
  std::vector<std::uint32_t> samples;  // indices of Dataset::samples()
};

// Where one sample goes: planned memory. Text rows behind the caption's end are zero.
struct SampleTarget {
  std::span<float> latent;        // [channels, frames, height, width]; pixels: channels last
  std::span<float> conditioning;  // [conditioning_channels, frames, height, width]; may be empty
  std::span<float> context;       // [text_len, text_dim]
  std::span<float> mask;          // [frames, height, width] loss weight; empty: not wanted
};

// The index of a cached dataset: headers were read, data was not. Cheap to keep; bytes() is its
// line in the plan. read() may be called from another thread.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::span<const Sample> samples() const = 0;
  virtual std::span<const Bucket> buckets() const = 0;
  // Whether any sample has a loss mask.
  virtual bool has_masks() const = 0;
  // All steps of one epoch in order: the same for the same seed, on every machine.
  virtual std::vector<StepBatch> epoch(std::int64_t number, std::uint64_t seed) const = 0;
  // use_empty_caption: the caption was dropped (uncond_fraction).
  virtual void read(std::uint32_t sample, bool use_empty_caption, const SampleTarget& to) const = 0;
  // Of the index and of the list that one epoch() makes.
  virtual Bytes bytes() const = 0;
  // Sentences for the user: dropped items, truncated buckets.
  virtual std::span<const std::string> notes() const = 0;

  // Whether read() can give the empty caption.
  virtual bool has_empty_caption() const = 0;
  // Whether there are items and every one is cached; always true unless the request was for
  // planning.
  virtual bool fully_cached() const = 0;
  // The bucket with the most latent elements in a micro-batch that the configuration allows or the
  // cache holds; items are 0 where nothing of it is cached yet. Nothing: there is neither.
  virtual std::optional<Bucket> largest_allowed_bucket() const = 0;
};

struct DatasetRequest {
  // A dataset file of diffusion-pipe or musubi-tuner; a folder of cached samples
  // (data/latent_cache.h); or a folder of X.latent.safetensors beside X.safetensors.
  std::string path;
  std::string named = {};  // where the path stands, for messages: "run.toml line 3: dataset"
  ModelNeeds needs = {};
  std::string cache_name = "wan";  // names the model's cache below a folder of media
  // Samples per micro-batch of clips of width x height pixels and so many frames; none: 1.
  // musubi-tuner's files have their own number.
  std::function<std::int64_t(std::int64_t width, std::int64_t height, std::int64_t frames)>
      micro_batch = {};
  std::int64_t accumulation = 1;
  std::string clip_mode = "single_beginning";
  bool allow_many_resolutions = false;
  bool trust_cache = false;  // files are not compared with what they were made from
  // The VAE is not at hand: latents are taken whatever they were normalised with.
  bool any_statistics = false;
  // Media that are not cached, folders that are missing and an epoch without a step are notes and
  // not errors. Such a dataset answers everything but cannot be read.
  bool planning = false;
  // What a diffusion-pipe file would be with these keys instead of its own, to plan it.
  std::optional<std::vector<std::int64_t>> frame_buckets = {};
  std::optional<double> resolution = {};
};

// Fails with ErrorCode::input or io; the message names the file, and the line of a dataset file.
std::unique_ptr<Dataset> open_dataset(const DatasetRequest& request);

}  // namespace ballast::data
