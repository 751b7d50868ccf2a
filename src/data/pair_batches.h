#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_cache.h"

namespace ballast::data {

// Which samples a training on pairs of texts sees, in which order, and how they are padded.

// Shapes that batches are padded to: at most 32, so that every one of them can be recorded. A batch
// takes the smallest that holds its longest source and its longest target.
inline constexpr std::size_t kMaxShapes = 32;

struct LadderOptions {
  std::int64_t multiple = 1;  // lengths are multiples of this (8: what tensor cores like)
  bool to_longest = false;    // one shape: everything is padded to the longest there may be
};
// Ascending in both lengths; the last one holds the longest. Up to 8 sources times 4 targets,
// evenly spaced.
std::vector<PairLength> shape_ladder(PairLength longest, const LadderOptions& options);
// The place of the smallest shape that holds both; fails (internal) when none does.
std::size_t shape_for(std::span<const PairLength> ladder, PairLength needed);

struct BatchOptions {
  std::int64_t batch = 8;         // samples of a micro-batch
  std::int64_t accumulation = 1;  // micro-batches of an optimizer step
  bool shuffle = true;
  bool group_by_length = false;  // samples of a step are about as long as each other
  std::uint64_t seed = 0;
  std::int64_t limit = 0;  // no more than the first so many samples; 0: all
};
// Samples of an epoch.
std::int64_t sample_count(const TokenCache& cache, const BatchOptions& options);

// The order of samples in an epoch (from 1). Depends on seed, epoch and the cache's lengths alone.
// group_by_length: inside runs of 50 steps of the shuffled order samples are sorted by length, then
// whole steps change places.
std::vector<std::uint32_t> epoch_order(const TokenCache& cache, const BatchOptions& options,
                                       std::int64_t epoch);

std::int64_t steps_per_epoch(std::int64_t samples, const BatchOptions& options);

// The samples of one optimizer step (from 0) of an epoch, and of one micro-batch of them: the last
// step of an epoch may have fewer micro-batches, and its last one fewer samples.
std::span<const std::uint32_t> samples_of_step(std::span<const std::uint32_t> order,
                                               const BatchOptions& options, std::int64_t step);

// What one micro-batch needs to be padded to.
PairLength needed_shape(const TokenCache& cache, std::span<const std::uint32_t> samples);
// Labels that count: tokens of all targets.
std::int64_t label_count(const TokenCache& cache, std::span<const std::uint32_t> samples);

// Inputs of a micro-batch, padded: rows of a sample follow those of the one before it.
struct PaddedBatch {
  std::span<std::int32_t> source;          // [samples, S]; behind the text `pad`
  std::span<std::int32_t> source_lengths;  // [samples]
  std::span<std::int32_t> decoder_input;   // [samples, T]: start, then the labels
  std::span<std::int32_t> labels;          // [samples, T]; behind the text -100
};
inline constexpr std::int32_t kIgnoredLabel = -100;

// Reads the samples into a batch of that shape. Places that are left over (the last batch of an
// epoch) become samples of one token whose labels do not count. Allocates nothing.
void read_batch(const TokenCache& cache, std::span<const std::uint32_t> samples, PairLength shape,
                std::int32_t pad, std::int32_t start, const PaddedBatch& to);

}  // namespace ballast::data
