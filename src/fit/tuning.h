#pragma once

#include <cstdint>

#include "core/bytes.h"

// The numbers of the search that were chosen by measuring, with their reasons. None of them decides
// whether a plan fits: they decide how long is looked for a faster one, and what a prediction has
// to promise before it is believed.
namespace ballast::fit::tuning {

// Predicted times are not that good: a plan that is faster by less than half a percent is not
// looked for. Where recordings are short it costs nothing, and any gain counts.
inline constexpr double kWorthLookingFor = 0.995;
// A way is taken, and the slower ones behind it are not looked at, where its step takes no longer
// than this times a step without what ways are about.
inline constexpr double kAsFast = 1.005;
// A step whose compute lane is busy for this share of it gains by larger pieces of work, not by
// other places of its weights.
inline constexpr double kComputingDecides = 0.9;
// A step waits for each streamed byte at least this share of what any plan that was found waits.
inline constexpr double kOfKnownStall = 0.95;
// Models of no more groups are so small that every policy is tried before they are refused:
// thousands of programs are recorded in seconds.
inline constexpr int kMaxTinyModelGroups = 8;
// What is alive grows by the same from block to block behind so many; fewer are recorded to learn
// what all of them need.
inline constexpr std::int64_t kMinRecordedLayers = 3;
// Plans with fewer resident groups that are tried where one more than live bytes allow was packed.
inline constexpr int kMaxGroupsRemoved = 4;

// Host memory. A disk that reads into much memory in turns gives this share of what it gives to its
// own ring (decision 53).
inline constexpr double kIntoALargeRing = 0.85;
// Buffers of a ring beside its own: with those a block of the 14B model is read ahead, and more
// waited for nothing.
inline constexpr int kMaxBuffers = 160;
// Recordings of a plan with a larger ring take up to so much more than was known.
inline constexpr Bytes kRingUnknown{16u << 20};
// A step has to promise this gain before groups are given to host memory.
inline constexpr double kGainOfHostGroups = 0.02;
// Computing attention again in order to hold more weights is surely slower and only probably
// faster: it has to promise a hundredth.
inline constexpr double kGainOfRecomputing = 0.99;
// A ring helps where a step takes this much longer than its busiest lane.
inline constexpr double kRingHelps = 1.03;
// The search is repeated for a faster disk where this share of the streamed groups comes from host
// memory, as if no more than the second number did; once more where the share it found is smaller
// than the first one's by a tenth (decision 54).
inline constexpr double kManyInHost = 0.25, kAlmostAllInHost = 0.95, kClearlyFewer = 0.9;

// Advice. Where no single change is enough, pairs of those that come closest are planned.
inline constexpr std::size_t kPairedChanges = 4;

}  // namespace ballast::fit::tuning
