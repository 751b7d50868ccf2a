#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ballast {

// What of a block's forward pass is still there when its backward pass begins.
enum class Activations : std::uint8_t {
  kept,            // everything backward reads
  attention_kept,  // block input, attention output and log-sum-exp; the rest is computed again
  recomputed,      // block input only
};
std::string_view name_of(Activations a);

enum class StreamSource : std::uint8_t { disk, host };

inline constexpr int kAllGroups = 1 << 20;  // more than any model has

// Weights that pass through slots of the device.
struct Streaming {
  int slots = 1;
  int matrices_ahead = 0;   // 0: a slot holds a whole group; else streamed matrices come one by one
                            // when they are used, so many ahead, and are read again for a later use
  int resident_groups = 0;  // groups (blocks, embeddings, head) that stay, evenly spaced
  StreamSource stream_from = StreamSource::disk;  // where the others come from
  int host_groups = 0;  // groups that come from host memory although the others come from disk,
                        // evenly spaced among those that stream
  int extra_ring_buffers =
      0;  // that the ring through which weights come from disk has beside its own

  friend bool operator==(const Streaming&, const Streaming&) = default;
};

// How a program is recorded. None of it changes a bit of the result.
struct MemoryPolicy {
  std::string name = "resident";
  std::optional<Streaming> streaming = {};  // nothing: all weights stay on the device
  Activations activations = Activations::kept;
  int kept_blocks =
      0;  // blocks whose activations are kept although the others' are not, evenly spaced
  bool split_backward =
      false;             // backward restores self-attention's side of a block when it comes to it
  bool offload = false;  // what is kept from forward to backward waits in host memory
  std::int64_t chunk_tokens =
      0;  // 0: a sample at once; else token-local work in chunks of so many rows
  std::int64_t heads_per_group =
      0;  // 0: all heads; else attention backward over groups of so many heads
  std::int64_t samples_per_pass =
      0;  // 0: all samples of a step share a visit of each block; else so many do
  bool state_on_host = false;  // adapters' gradients and moments wait in host memory
  // Groups whose moments and masters wait on disk: first those that stay, then evenly spaced ones
  // of the others; all of them from kAllGroups on.
  int disk_state_groups = 0;

  bool streams() const { return streaming.has_value(); }
  // No slots where nothing streams.
  Streaming stream() const { return streaming.value_or(Streaming{.slots = 0}); }
  void keep_groups(int groups) {
    if (streaming) streaming->resident_groups = groups;
  }

  friend bool operator==(const MemoryPolicy&, const MemoryPolicy&) = default;
};

// resident, stream1, stream2, stream4, recompute, keep-attention, offload, chunked, grouped,
// matrix-streaming, split-backward, state-on-disk. find_policy() also knows the names that two of
// them had before: parts, halves.
std::span<const MemoryPolicy> named_policies();
std::optional<MemoryPolicy> find_policy(std::string_view name);

// A piece of a sample's tokens that is worked on at once.
struct TokenChunk {
  std::int64_t first, rows;
};
std::vector<TokenChunk> token_chunks(const MemoryPolicy& policy, std::int64_t tokens);

// Whether item i of n is one of `chosen` evenly spaced ones.
constexpr bool evenly_chosen(std::int64_t i, std::int64_t n, std::int64_t chosen) {
  return n > 0 && (i + 1) * chosen / n != i * chosen / n;
}

// Whether group g of n, one that streams, comes from host memory.
constexpr bool comes_from_host(const Streaming& s, std::int64_t g, std::int64_t n) {
  const std::int64_t resident_before = s.resident_groups, before = g * resident_before / n;
  return s.stream_from == StreamSource::host ||
         evenly_chosen(g - before, n - resident_before, s.host_groups);
}

}  // namespace ballast
