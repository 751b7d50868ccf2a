// Policies that a search tries for a transformer.

#include <algorithm>
#include <set>

#include "models/wan/fit_job.h"
#include "ops/kernels/token_quantum.h"

namespace ballast::wan {
namespace {

std::int64_t longest_sample(const DitJob& job) {
  std::int64_t tokens = 0;
  for (const Batch& b : job.batches) {
    for (const LatentSize& z : b.latents) tokens = std::max(tokens, z.tokens());
  }
  return tokens;
}

bool one_head_is_work_enough(const DitJob& job) { return longest_sample(job) >= 16384; }

std::int64_t chunk_of(const DitJob& job, std::int64_t least, std::int64_t pieces) {
  const std::int64_t rows = std::max(least, longest_sample(job) / pieces);
  const std::int64_t unit = row_unit(job);
  return (rows + unit - 1) / unit * unit;
}

// Tokens worked on at once: an eighth or a sixteenth of the longest sample. More chunks save little
// and make programs long.
std::int64_t chunk_in(const DitJob& job, std::int64_t pieces) {
  return chunk_of(job, 2 * kTokenQuantum, pieces);
}
std::int64_t wide_chunk(const DitJob& job) { return chunk_in(job, 8); }
std::int64_t narrow_chunk(const DitJob& job) { return chunk_of(job, kTokenQuantum, 16); }

// Heads that attention's backward pass works on at once, where memory is no concern (0: all), where
// there is some to spare, and where it is short. Its workspace on a GPU grows with the square of
// the tokens, and so does the work of one head: from 16,384 tokens on one alone keeps a GPU busy
// (measured at 32,760: within 1 %).
std::int64_t usual_heads(const DitJob& job) { return one_head_is_work_enough(job) ? 1 : 0; }
std::int64_t many_heads(const DitJob& job) { return one_head_is_work_enough(job) ? 8 : 0; }
std::int64_t few_heads(const DitJob& job) { return one_head_is_work_enough(job) ? 1 : 4; }

// Whether a step has several samples that need not share a run.
bool several_samples(const DitJob& job) {
  return job.noising != Noising::given &&
         std::ranges::any_of(job.batches, [](const Batch& b) { return b.latents.size() > 1; });
}

// Matrices that come ahead of the one in use where they have places of their own, if there is room:
// the three that attention begins with.
constexpr int kMatricesAhead = 3;

}  // namespace

// Weights stay before they stream, activations are kept before they are computed again, host memory
// is used before disk.
std::vector<std::vector<MemoryPolicy>> FitJob::candidates(const fit::Switches&) const {
  const DitJob& job = dit;
  const std::int64_t wide = wide_chunk(job);
  std::vector<std::vector<MemoryPolicy>> all(1);
  const auto add = [&](MemoryPolicy p) {
    p.name = "auto";
    all.back().push_back(std::move(p));
  };
  constexpr auto kept = Activations::kept, attention = Activations::attention_kept,
                 recomputed = Activations::recomputed;
  const bool trains = job.mode != Mode::infer;
  const auto weights = [&](MemoryPolicy p) {
    if (!trains) {
      if (!p.streams()) add(p);
      p.chunk_tokens = wide;
      add(p);
      return;
    }
    p.heads_per_group = usual_heads(job);
    for (const std::int64_t samples : {0, 1}) {
      if (samples > 0 && !several_samples(job)) break;
      p.samples_per_pass = samples;
      p.activations = kept, p.offload = false, p.chunk_tokens = 0;
      if (!p.streams()) {
        add(p);
        // Larger groups and no chunks keep a GPU busier than predicted times know; among equals the
        // first one stays.
        p.activations = attention;
        p.heads_per_group = many_heads(job);
        add(p);
        p.heads_per_group = usual_heads(job);
      }
      p.chunk_tokens = wide;
      for (const bool offload : {false, true}) {
        p.offload = offload;
        p.activations = attention;
        add(p);
        p.activations = recomputed;
        add(p);
      }
      if (!p.streams()) continue;
      p.split_backward = true;
      p.activations = attention;
      add(p);
      p.activations = recomputed;
      add(p);
      p.split_backward = false;
    }
  };
  weights({});
  weights({.streaming = Streaming{.slots = 2, .stream_from = StreamSource::host}});
  if (job.mode != Mode::full)
    weights({.streaming = Streaming{.slots = 2, .stream_from = StreamSource::disk}});
  // From host memory and from disk, with attention kept where it may wait in host memory.
  const auto every_compute_policy = [&](MemoryPolicy p) {
    const bool fixed = !p.streams() || job.mode == Mode::full;
    const Activations least = p.activations;
    for (const Activations a : {attention, least}) {
      if (a == attention && !p.offload) continue;
      p.activations = a;
      for (const StreamSource stream_from : {StreamSource::host, StreamSource::disk}) {
        if (fixed && stream_from != p.stream().stream_from) continue;
        add(p);
        if (auto& s = all.back().back().streaming) s->stream_from = stream_from;
      }
    }
  };
  const std::vector<MemoryPolicy> lean_ones = leanest();
  for (const MemoryPolicy& lean : lean_ones) {
    MemoryPolicy p = lean;
    if (p.stream().matrices_ahead != lean_ones.front().stream().matrices_ahead ||
        p.state_on_host != lean_ones.front().state_on_host) {
      all.emplace_back();
    }
    if (p.stream().matrices_ahead > 0) {
      p.streaming->matrices_ahead = kMatricesAhead;
      every_compute_policy(p);
    } else if (trains) {
      p.split_backward = false;
      every_compute_policy(p);
    }
    every_compute_policy(lean);
  }
  return all;
}

// They need less device memory and more host memory.
std::vector<MemoryPolicy> FitJob::leanest() const {
  const DitJob& job = dit;
  MemoryPolicy p = {
      .name = "auto", .streaming = Streaming{.slots = 1}, .chunk_tokens = narrow_chunk(job)};
  std::vector<MemoryPolicy> all;
  if (job.mode == Mode::infer) {
    all.push_back(p);
    p.streaming->matrices_ahead = 1;
    all.push_back(p);
    return all;
  }
  p.activations = Activations::recomputed;
  p.split_backward = true;
  p.heads_per_group = few_heads(job);
  if (several_samples(job)) p.samples_per_pass = 1;
  const auto add = [&](std::optional<Streaming> streaming, bool state_on_host) {
    for (const bool offload : {false, true}) {
      p.streaming = streaming;
      p.state_on_host = state_on_host;
      p.offload = offload;
      all.push_back(p);
    }
  };
  if (job.mode == Mode::full) {  // its state is where its weights are
    add(Streaming{.stream_from = StreamSource::host}, false);
    add(Streaming{.matrices_ahead = 1, .stream_from = StreamSource::host}, false);
    add({}, false);
    return all;
  }
  for (const int matrices_ahead : {0, 1}) {
    add(Streaming{.matrices_ahead = matrices_ahead}, false);
    add(Streaming{.matrices_ahead = matrices_ahead}, true);
  }
  return all;
}

// A policy that computes or copies more needs less for tensors, but its programs are longer and
// have to be kept as well. Where their length is not what decides, those that keep the least in any
// case.
std::vector<MemoryPolicy> FitJob::last_resort(bool length_decides) const {
  const DitJob& job = dit;
  std::vector<MemoryPolicy> all;
  const MemoryPolicy lean = leanest().front();
  const bool trains = job.mode != Mode::infer;
  const auto both = [](bool when) { return when ? std::vector{false, true} : std::vector{false}; };
  for (const bool streams : {true, false}) {
    if (!streams && !length_decides) continue;
    for (const std::int64_t chunk : {lean.chunk_tokens, wide_chunk(job), std::int64_t{0}}) {
      for (const bool whole_heads : both(trains)) {
        for (const bool all_samples : both(several_samples(job))) {
          for (const bool state_on_host : both(job.mode == Mode::lora)) {
            for (const bool offload : both(trains)) {
              for (const Activations a :
                   {Activations::recomputed, Activations::attention_kept, Activations::kept}) {
                MemoryPolicy p = lean;
                if (!streams) p.streaming.reset();
                p.split_backward = false;
                p.chunk_tokens = chunk;
                if (whole_heads) p.heads_per_group = 0;
                if (all_samples) p.samples_per_pass = 0;
                p.state_on_host = state_on_host;
                p.offload = offload;
                p.activations = a;
                const bool keeps_least =
                    a == (trains ? Activations::recomputed : Activations::kept);
                if (keeps_least || (trains && length_decides)) all.push_back(std::move(p));
              }
            }
          }
        }
      }
    }
  }
  for (MemoryPolicy& p : leanest()) all.push_back(std::move(p));
  return all;
}

namespace {

// Calls add with every way to keep activations and to cut work in pieces.
template <class Add>
void each_compute_policy(const DitJob& job, MemoryPolicy p, Add&& add) {
  std::set<std::int64_t> chunks = {0, wide_chunk(job), narrow_chunk(job)};
  std::set<std::int64_t> heads = {0}, samples = {0};
  if (job.mode != Mode::infer) {
    for (const std::int64_t h : {std::int64_t{1}, few_heads(job)}) {
      if (h < job.config.heads) heads.insert(h);
    }
    if (several_samples(job)) samples.insert(1);
  }
  std::erase_if(chunks, [&](std::int64_t c) { return c >= longest_sample(job); });
  for (const Activations a :
       {Activations::recomputed, Activations::attention_kept, Activations::kept}) {
    if (a != Activations::kept && job.mode == Mode::infer) continue;
    for (const bool split_backward : {false, true}) {
      if (split_backward && a == Activations::kept) continue;
      for (const bool offload : {false, true}) {
        if (offload && job.mode == Mode::infer) continue;
        for (const std::int64_t chunk : chunks) {
          for (const std::int64_t head : heads) {
            for (const std::int64_t sample : samples) {
              p.activations = a, p.split_backward = split_backward, p.offload = offload;
              p.chunk_tokens = chunk, p.heads_per_group = head, p.samples_per_pass = sample;
              add(p);
            }
          }
        }
      }
    }
  }
}

}  // namespace

// kept_blocks and larger chunks aside: thousands of programs of a model with so few groups are
// recorded in seconds. Of them a plan may miss by what one instruction takes, and any policy may be
// the one that fits.
std::vector<MemoryPolicy> FitJob::every_policy(int max_disk_state_groups) const {
  const DitJob& job = dit;
  std::vector<MemoryPolicy> all;
  const bool full = job.mode == Mode::full;
  const auto states = [&](MemoryPolicy p) {
    for (p.disk_state_groups = 0; p.disk_state_groups <= max_disk_state_groups;
         ++p.disk_state_groups) {
      for (const bool on_host : {false, true}) {
        if (on_host && job.mode != Mode::lora) continue;
        p.state_on_host = on_host;
        each_compute_policy(job, p, [&](const MemoryPolicy& q) { all.push_back(q); });
      }
    }
  };
  states({.name = "auto"});
  for (const auto& [slots, matrices_ahead] :
       {std::pair(1, 0), {2, 0}, {1, 1}, {1, kMatricesAhead}}) {
    for (const StreamSource stream_from : {StreamSource::disk, StreamSource::host}) {
      if (full && stream_from == StreamSource::disk) continue;
      for (int g = 0; g < wan::group_count(job.config); ++g) {
        states({.name = "auto",
                .streaming = Streaming{.slots = slots,
                                       .matrices_ahead = matrices_ahead,
                                       .resident_groups = g,
                                       .stream_from = stream_from}});
      }
    }
  }
  return all;
}

namespace {

std::vector<Activations> activations_of(const DitJob& job, const fit::Switches& switches) {
  if (job.mode == Mode::infer) return {Activations::kept};  // no backward pass reads any
  switch (switches.checkpointing) {
    case fit::Choice::off:
      return {Activations::kept};
    case fit::Choice::on:
      return {Activations::attention_kept, Activations::recomputed};
    case fit::Choice::automatic:
      break;
  }
  return {Activations::kept, Activations::attention_kept, Activations::recomputed};
}

// Where weights, and with them what waits for backward, may be.
std::vector<MemoryPolicy> placements_of(const DitJob& job, const fit::Switches& switches) {
  const bool trains = job.mode != Mode::infer;
  std::vector<MemoryPolicy> placements;
  if (switches.offloading != fit::Choice::on) placements.push_back({.name = "auto"});
  if (switches.offloading == fit::Choice::off) return placements;
  placements.push_back({.name = "auto",
                        .streaming = Streaming{.slots = 2, .stream_from = StreamSource::host},
                        .offload = trains});
  const StreamSource lean = job.mode == Mode::full ? StreamSource::host : StreamSource::disk;
  placements.push_back(
      {.name = "auto", .streaming = Streaming{.slots = 2, .stream_from = lean}, .offload = trains});
  MemoryPolicy last = {
      .name = "auto", .streaming = Streaming{.slots = 1, .stream_from = lean}, .offload = trains};
  if (trains) last.heads_per_group = few_heads(job);
  placements.push_back(last);
  last.state_on_host = job.mode == Mode::lora;
  if (last.state_on_host) placements.push_back(last);
  last.streaming->matrices_ahead = kMatricesAhead;
  last.split_backward = trains;
  placements.push_back(last);
  return placements;
}

}  // namespace

std::vector<MemoryPolicy> FitJob::switched(const fit::Switches& switches) const {
  const DitJob& job = dit;
  const bool several = several_samples(job);
  std::vector<MemoryPolicy> all;
  for (const MemoryPolicy& placement : placements_of(job, switches)) {
    for (const Activations activations : activations_of(job, switches)) {
      for (const std::int64_t chunk : {std::int64_t{0}, wide_chunk(job)}) {
        MemoryPolicy p = placement;
        p.activations = activations;
        p.chunk_tokens = chunk;
        all.push_back(p);
        if (!several) continue;
        p.samples_per_pass = 1;
        all.push_back(std::move(p));
      }
    }
  }
  return all;
}

// For plans whose steps wait for nothing.
std::vector<std::int64_t> FitJob::larger_chunks() const {
  return {0, chunk_in(dit, 2), chunk_in(dit, 4), wide_chunk(dit)};
}

std::vector<std::int64_t> FitJob::larger_head_groups() const {
  if (dit.mode == Mode::infer) return {};
  return {many_heads(dit), 4, 2};
}

}  // namespace ballast::wan
