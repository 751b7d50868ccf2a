#include "nn/memory_policy.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "ops/kernels/token_quantum.h"

namespace ballast {

std::string_view name_of(Activations a) {
  constexpr std::string_view kNames[] = {"kept", "attention outputs kept", "recomputed"};
  return kNames[to_size(a)];
}

std::span<const MemoryPolicy> named_policies() {
  static const std::array<MemoryPolicy, 12> kPolicies = {{
      {.name = "resident"},
      {.name = "stream1", .streaming = Streaming{.slots = 1}},
      {.name = "stream2", .streaming = Streaming{.slots = 2}},
      {.name = "stream4", .streaming = Streaming{.slots = 4}},
      {.name = "recompute", .activations = Activations::recomputed},
      {.name = "keep-attention", .activations = Activations::attention_kept},
      {.name = "offload", .activations = Activations::attention_kept, .offload = true},
      {.name = "chunked", .activations = Activations::recomputed, .chunk_tokens = kTokenQuantum},
      {.name = "grouped", .activations = Activations::recomputed, .heads_per_group = 1},
      {.name = "matrix-streaming",
       .streaming = Streaming{.slots = 1, .matrices_ahead = 2},
       .activations = Activations::recomputed},
      {.name = "split-backward",
       .streaming = Streaming{.slots = 1},
       .activations = Activations::recomputed,
       .split_backward = true,
       .offload = true},
      {.name = "state-on-disk",
       .streaming = Streaming{.slots = 2, .stream_from = StreamSource::host},
       .disk_state_groups = kAllGroups},
  }};
  return kPolicies;
}

std::optional<MemoryPolicy> find_policy(std::string_view name) {
  if (name == "parts") name = "matrix-streaming";
  if (name == "halves") name = "split-backward";
  const auto all = named_policies();
  const auto it = std::ranges::find(all, name, &MemoryPolicy::name);
  if (it == all.end()) return std::nullopt;
  return *it;
}

std::vector<TokenChunk> token_chunks(const MemoryPolicy& policy, std::int64_t tokens) {
  check(policy.chunk_tokens % kTokenQuantum == 0, "chunks of {} tokens are not multiples of {}",
        policy.chunk_tokens, kTokenQuantum);
  const std::int64_t step = policy.chunk_tokens > 0 ? policy.chunk_tokens : tokens;
  std::vector<TokenChunk> chunks;
  for (std::int64_t first = 0; first < tokens; first += step) {
    chunks.push_back({first, std::min(step, tokens - first)});
  }
  return chunks;
}

}  // namespace ballast
