#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/sample_layout.h"

namespace ballast::data {

// What scanning a cache finds, before batches are made of it.
struct CachedItem {
  std::string id;
  std::string latent, text;  // files, below the group's folder
  LatentShape shape;
  bool mask = false;
};

// The items of one directory.
struct ItemGroup {
  std::string folder;
  SampleLayout layout = SampleLayout::ballast;
  std::vector<CachedItem> items = {};  // in the order in which repeats count them
  double repeats = 1;              // of each bucket: int(items * repeats), counted round and round
  std::int64_t batch = 0;          // 0: what the request says
  bool apart = false;              // its buckets are not merged with those of other groups
  std::string empty_caption = {};  // file below the folder; empty: none
};

// What becomes of the items of a bucket that fill no whole step, and when the order changes.
enum class BatchRule : std::uint8_t {
  whole_steps,    // diffusion-pipe: they are left out; the same order every epoch
  partial_steps,  // musubi-tuner: a smaller step; a new order every epoch
};

struct EncodingWork;
enum class MusubiMedia : std::uint8_t;

struct DatasetContent {
  std::string source;  // of messages: the file or folder
  std::vector<ItemGroup> groups;
  std::vector<std::string> labels;  // that sample ids begin with, each once
  BatchRule rule = BatchRule::whole_steps;
  double subsample = 1;           // of an epoch's steps, the first are kept
  std::vector<Bucket> allowed;    // what the configuration could make
  std::int64_t not_cached = 0;    // items
  std::string first_missing;      // one of them, and why
  std::string nothing_cached_in;  // a folder that may hold items and has none, and why
  std::vector<std::string> notes;
  // Where scans list what is to be encoded; nullptr: nobody asks (data/encoding_work.h).
  EncodingWork* work = nullptr;
  bool regenerate = false;  // all of it, whatever is there
  MusubiMedia musubi{};     // open_all (data/encoding_work.h)
};

// With what to do about it.
[[noreturn]] void fail_not_cached(const std::string& message);

// Samples per micro-batch of a latent of this shape, asked in pixels.
std::int64_t micro_batch_of(const DatasetRequest& request, const LatentShape& shape);
LatentShape latent_shape(const ModelNeeds& needs, std::int64_t width, std::int64_t height,
                         std::int64_t frames);

class CachedDataset final : public Dataset {
 public:
  CachedDataset(DatasetContent content, const DatasetRequest& request);

  std::span<const Sample> samples() const override { return samples_; }
  std::span<const Bucket> buckets() const override { return buckets_; }
  bool has_masks() const override { return masks_; }
  std::vector<StepBatch> epoch(std::int64_t number, std::uint64_t seed) const override;
  void read(std::uint32_t sample, bool use_empty_caption, const SampleTarget& to) const override;
  Bytes bytes() const override;
  std::span<const std::string> notes() const override { return content_.notes; }
  bool has_empty_caption() const override { return empty_caption_; }
  bool fully_cached() const override {
    return content_.not_cached == 0 && content_.nothing_cached_in.empty() && !samples_.empty();
  }
  std::optional<Bucket> largest_allowed_bucket() const override;

 private:
  struct Place {  // of a sample
    std::uint32_t group = 0, item = 0;
  };
  // The samples of one group in one bucket, in order.
  struct Share {
    std::uint32_t group = 0;
    std::vector<std::uint32_t> samples;
    std::int64_t count = 0;  // with repeats
  };

  std::uint32_t bucket_for(const ItemGroup& group, std::uint32_t number, const LatentShape& shape,
                           const DatasetRequest& request);
  void count_repeats();
  void leave_out_rests();
  void require_steps(const DatasetRequest& request);
  std::int64_t step_size(std::size_t bucket) const;
  std::int64_t steps() const;  // before subsampling
  void read_caption(const ItemGroup& group, const CachedItem& item, bool empty,
                    std::span<float> to) const;

  DatasetContent content_;
  ModelNeeds needs_;
  std::int64_t accumulation_;
  std::vector<Sample> samples_;
  std::vector<Place> places_;  // per sample
  std::vector<Bucket> buckets_;
  std::vector<std::vector<Share>> shares_;  // per bucket
  std::vector<std::uint32_t> apart_;        // per bucket: its group, or ~0u
  bool masks_ = false, empty_caption_ = false;
};

}  // namespace ballast::data
