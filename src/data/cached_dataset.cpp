#include "data/cached_dataset.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/random.h"
#include "core/to_size.h"
#include "data/shuffle.h"

namespace ballast::data {
namespace {

constexpr std::int64_t kMaxItems = 16'000'000;  // of an epoch; its list is kept in memory
constexpr std::size_t kMaxBuckets = 4096;
constexpr std::uint32_t kShared = std::numeric_limits<std::uint32_t>::max();

std::string describe(const LatentShape& s) {
  return fmt::format("{}x{}x{}x{}", s.channels, s.frames, s.height, s.width);
}

std::uint64_t heap_bytes(const std::string& s) {
  const auto* inside = reinterpret_cast<const char*>(&s);
  const bool local = s.data() >= inside && s.data() < inside + sizeof s;
  return local ? 0 : s.capacity() + 1;
}

template <class T>
std::uint64_t heap_bytes(const std::vector<T>& v) {
  return v.capacity() * sizeof(T);
}

}  // namespace

LatentShape latent_shape(const ModelNeeds& needs, std::int64_t width, std::int64_t height,
                         std::int64_t frames) {
  return {needs.latent_channels, (frames - 1) / needs.temporal_stride + 1,
          height / needs.spatial_stride, width / needs.spatial_stride};
}

std::int64_t micro_batch_of(const DatasetRequest& request, const LatentShape& s) {
  if (!request.micro_batch) return 1;
  const std::int64_t stride = request.needs.spatial_stride;
  const std::int64_t n = request.micro_batch(s.width * stride, s.height * stride,
                                             (s.frames - 1) * request.needs.temporal_stride + 1);
  check(n > 0, "a micro-batch of {} samples", n);
  return n;
}

CachedDataset::CachedDataset(DatasetContent content, const DatasetRequest& request)
    : content_(std::move(content)), needs_(request.needs), accumulation_(request.accumulation) {
  check(accumulation_ > 0, "{} micro-batches in a step", accumulation_);
  empty_caption_ = !content_.groups.empty();
  for (std::uint32_t g = 0; g < content_.groups.size(); ++g) {
    ItemGroup& group = content_.groups[g];
    empty_caption_ = empty_caption_ && !group.empty_caption.empty();
    for (std::uint32_t i = 0; i < group.items.size(); ++i) {
      CachedItem& item = group.items[i];
      const std::uint32_t bucket = bucket_for(group, g, item.shape, request);
      std::vector<Share>& shares = shares_[bucket];
      if (shares.empty() || shares.back().group != g) shares.push_back({.group = g, .samples = {}});
      shares.back().samples.push_back(static_cast<std::uint32_t>(samples_.size()));
      samples_.push_back({std::move(item.id), bucket});
      places_.push_back({g, i});
      masks_ = masks_ || item.mask;
    }
  }
  count_repeats();
  if (content_.rule == BatchRule::whole_steps) leave_out_rests();
  require_steps(request);
}

std::uint32_t CachedDataset::bucket_for(const ItemGroup& group, std::uint32_t number,
                                        const LatentShape& shape, const DatasetRequest& request) {
  const std::uint32_t owner = group.apart ? number : kShared;
  for (std::uint32_t b = 0; b < buckets_.size(); ++b) {
    if (buckets_[b].shape == shape && apart_[b] == owner) return b;
  }
  if (buckets_.size() == kMaxBuckets) {
    fail(ErrorCode::input, "{}: more than {} different latent shapes", content_.source,
         kMaxBuckets);
  }
  const std::int64_t batch = group.batch > 0 ? group.batch : micro_batch_of(request, shape);
  buckets_.push_back({.shape = shape, .micro_batch = batch, .items = 0});
  shares_.emplace_back();
  apart_.push_back(owner);
  return static_cast<std::uint32_t>(buckets_.size() - 1);
}

void CachedDataset::count_repeats() {
  std::int64_t total = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (Share& share : shares_[b]) {
      const double repeats = content_.groups[share.group].repeats;
      const double count = static_cast<double>(share.samples.size()) * repeats;
      if (count + static_cast<double>(total) > static_cast<double>(kMaxItems)) {
        fail(ErrorCode::input,
             fmt::format("{}: an epoch of more than {} items: {} in {} times {}", content_.source,
                         kMaxItems, share.samples.size(), content_.groups[share.group].folder,
                         repeats),
             {{"num_repeats", "lower it and raise epochs instead"}});
      }
      share.count = static_cast<std::int64_t>(count);
      buckets_[b].items += share.count;
      total += share.count;
    }
  }
}

std::int64_t CachedDataset::step_size(std::size_t bucket) const {
  return buckets_[bucket].micro_batch * accumulation_;
}

void CachedDataset::leave_out_rests() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const std::int64_t rest = buckets_[b].items % step_size(b);
    if (rest == 0) continue;
    content_.notes.push_back(
        fmt::format("bucket {}: {} of {} items are left out{}: steps take {}",
                    describe(buckets_[b].shape), rest, buckets_[b].items,
                    rest == buckets_[b].items ? ", the bucket is not used" : "", step_size(b)));
    buckets_[b].items -= rest;
  }
}

std::int64_t CachedDataset::steps() const {
  std::int64_t n = 0;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    n += (buckets_[b].items + step_size(b) - 1) / step_size(b);
  }
  return n;
}

void fail_not_cached(const std::string& message) {
  fail(ErrorCode::input, message,
       {{"ballast cache with the same arguments",
         "encodes them; training reads encoded latents and text, not media"}});
}

void CachedDataset::require_steps(const DatasetRequest& request) {
  if (content_.not_cached > 0) {
    const std::string message = fmt::format(
        "{}: {} of its items {} not cached yet ({})", content_.source, content_.not_cached,
        content_.not_cached == 1 ? "is" : "are", content_.first_missing);
    if (!request.planning) fail_not_cached(message);
    content_.notes.push_back(message);
  }
  const auto kept = static_cast<std::int64_t>(static_cast<double>(steps()) * content_.subsample);
  if (kept > 0) return;
  const std::string message =
      samples_.empty()
          ? fmt::format("{}: the data set is empty: no cached sample was found", content_.source)
          : fmt::format("{}: the data set is empty: {} samples fill no step in any bucket",
                        content_.source, samples_.size());
  if (request.planning && !fully_cached()) {
    content_.notes.push_back(message);
    return;
  }
  if (samples_.empty()) {
    fail(ErrorCode::input, message,
         {{"videos or images with their captions in the folders it names, then ballast cache",
           "training reads what that encodes"}});
  }
  fail(ErrorCode::input, message,
       {{"a smaller batch",
         "micro_batch_size_per_gpu times gradient_accumulation_steps is what a "
         "bucket must fill"},
        {"a higher num_repeats", "fills steps by using samples more often"}});
}

std::vector<StepBatch> CachedDataset::epoch(std::int64_t number, std::uint64_t seed) const {
  const bool again = content_.rule == BatchRule::whole_steps;
  const std::int64_t turn = again ? 0 : number;
  std::vector<StepBatch> all;
  all.reserve(to_size(steps()));
  std::vector<std::uint32_t> order;
  for (std::uint32_t b = 0; b < buckets_.size(); ++b) {
    order.clear();
    for (const Share& share : shares_[b]) {
      for (std::int64_t i = 0; i < share.count; ++i) {
        order.push_back(share.samples[to_size(i) % share.samples.size()]);
      }
    }
    // Named by shape and not by number: a bucket that comes or goes leaves the others as they were.
    shuffle(std::span(order),
            random_source(seed, "data.items", turn,
                          fmt::format("{}/{}", describe(buckets_[b].shape), apart_[b])));
    const auto used = to_size(buckets_[b].items);
    const auto step = to_size(step_size(b));
    for (std::size_t at = 0; at < used; at += step) {
      const auto first = order.begin() + static_cast<std::ptrdiff_t>(at);
      const auto last = order.begin() + static_cast<std::ptrdiff_t>(std::min(at + step, used));
      all.push_back({.bucket = b, .samples = {first, last}});
    }
  }
  shuffle(std::span(all), random_source(seed, "data.steps", turn, "epoch"));
  all.resize(to_size(static_cast<double>(all.size()) * content_.subsample));
  return all;
}

void CachedDataset::read(std::uint32_t sample, bool use_empty_caption,
                         const SampleTarget& to) const {
  check(sample < samples_.size(), "sample {} of {}", sample, samples_.size());
  const ItemGroup& group = content_.groups[places_[sample].group];
  const CachedItem& item = group.items[places_[sample].item];
  while_doing(fmt::format("reading sample {}", printable(samples_[sample].id)), [&] {
    const CacheFile file = CacheFile::open(fmt::format("{}/{}", group.folder, item.latent));
    const LatentTensors tensors = find_latent(file, group.layout, needs_);
    if (tensors.shape != item.shape) {
      file.refuse(*tensors.latent,
                  fmt::format("sample {} is now {}, it was {} when the run began: the cache was "
                              "changed meanwhile",
                              printable(samples_[sample].id), describe(tensors.shape),
                              describe(item.shape)));
    }
    const auto grid = to_size(item.shape.frames * item.shape.height * item.shape.width);
    const auto channels = to_size(needs_.conditioning_channels);
    check(to.latent.size() == to_size(item.shape.elements()) &&
              (to.conditioning.empty() || to.conditioning.size() == channels * grid) &&
              (to.mask.empty() || to.mask.size() == grid) &&
              (needs_.pixels || to.context.size() == to_size(needs_.text_len * needs_.text_dim)),
          "sample {}: the memory it is read into has other sizes", samples_[sample].id);
    read_latent(file, tensors, group.layout, needs_, to.latent);
    if (!to.conditioning.empty()) read_conditioning(file, tensors, to.conditioning);
    if (!to.mask.empty()) read_mask(file, tensors, to.mask);
    if (!needs_.pixels) read_caption(group, item, use_empty_caption, to.context);
  });
}

void CachedDataset::read_caption(const ItemGroup& group, const CachedItem& item, bool empty,
                                 std::span<float> to) const {
  if (empty && group.empty_caption.empty()) {
    fail(ErrorCode::input,
         fmt::format("{}: the empty caption was asked for and is not cached", group.folder),
         {{"uncond_fraction = 0", "no caption is dropped"}});
  }
  const CacheFile file =
      CacheFile::open(fmt::format("{}/{}", group.folder, empty ? group.empty_caption : item.text));
  read_text(file, find_text(file, group.layout, needs_), to);
}

Bytes CachedDataset::bytes() const {
  std::uint64_t n = sizeof(*this) + heap_bytes(samples_) + heap_bytes(places_) +
                    heap_bytes(buckets_) + heap_bytes(shares_) + heap_bytes(apart_) +
                    heap_bytes(content_.groups) + heap_bytes(content_.notes) +
                    heap_bytes(content_.allowed);
  for (const Sample& s : samples_) n += heap_bytes(s.id);
  for (const auto& shares : shares_) {
    n += heap_bytes(shares);
    for (const Share& s : shares) n += heap_bytes(s.samples);
  }
  for (const ItemGroup& g : content_.groups) {
    n += heap_bytes(g.items);
    for (const CachedItem& i : g.items) {
      n += heap_bytes(i.latent) + heap_bytes(i.text);
    }
  }
  // One epoch's list, with what the heap adds to each of its small vectors.
  constexpr std::uint64_t kHeapBlock = 32;
  std::uint64_t items = 0;
  for (const Bucket& b : buckets_) items += static_cast<std::uint64_t>(b.items);
  n += static_cast<std::uint64_t>(steps()) * (sizeof(StepBatch) + kHeapBlock) +
       2 * items * sizeof(std::uint32_t);
  return {n};
}

std::optional<Bucket> CachedDataset::largest_allowed_bucket() const {
  std::optional<Bucket> largest;
  const auto consider = [&](const Bucket& b) {
    const auto load = [](const Bucket& x) { return x.micro_batch * x.shape.elements(); };
    if (!largest || load(b) > load(*largest)) largest = b;
  };
  for (const Bucket& b : buckets_) consider(b);
  for (const Bucket& b : content_.allowed) consider(b);
  return largest;
}

}  // namespace ballast::data
