#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/t5/adapters.h"
#include "models/t5/block.h"
#include "models/t5/config.h"
#include "models/t5/weights_in_use.h"

namespace ballast::t5 {

// Everything that decides what is recorded for writing text token by token.
struct DecoderJob {
  Config config = {};
  MemoryPolicy policy = {};
  Precision precision = {};
  WeightFormat format = WeightFormat::stored;
  std::int64_t beams = 1;                  // sequences that are continued together
  std::int64_t positions = 0;              // most tokens of a sequence, the start token included
  std::vector<std::int64_t> sources = {};  // every length of a source there will be
  // Lengths of `sources` are those of shapes: padding stands behind the text, of which
  // source_length says the length. No bit of a result depends on it.
  bool padded = false;
  std::optional<LoraOptions> lora = {};  // adapters, for the caller to fill after "load"
};

// What the host gives and takes (host tier).
struct DecoderIo {
  struct Source {
    std::string read;  // program: encodes the source, makes keys and values of it
    std::string next;  // program: one more token of every sequence
    Buffer ids;        // [S] i32, for `read`
  };
  std::vector<Source> sources;  // as in the job; they share memory
  Buffer source_length;         // [1] i32, for `read` and `next`; only where sources are padded
  Buffer tokens;                // [beams] i32, for `next`: what each sequence ends with
  Buffer logits;                // [beams, V] f32: what `next` makes of it
  Buffer parents;               // [beams] i32, for "reorder"
};

// T5's decoder with a cache as recorded programs: "load", for every length of a source "read" and
// "next", and "reorder". Run `next` with StepValues::step = the token's position, from 0 on: it
// appends keys and values at that position. "reorder" lets sequence i go on from the cache of
// sequence parents[i].
class Decoder {
 public:
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  Decoder(ProgramSet& set, DecoderJob job, std::vector<WeightGroup> groups);
  // Beside programs that have the weights already: no "load" of its own. `load` declares what it
  // keeps, record() the programs; both need weights and adapters, which stay where they are.
  Decoder(ProgramBuilder& load, DecoderJob job, BlockWeights& weights, const Adapters& adapters);
  void record(ProgramSet& set);

  const DecoderIo& io() const { return io_; }
  const DecoderJob& job() const { return job_; }
  const std::vector<AdapterIo>& adapters() const { return adapters_->all(); }

 private:
  struct Cache {
    Buffer self_k, self_v;    // [beams, positions, H, D]
    Buffer cross_k, cross_v;  // [S, H, D] of the longest source
  };
  void check_job() const;
  void declare(ProgramBuilder& pb);
  BlockInUse block(ProgramBuilder& pb, WeightsInUse& weights, Side side, std::int64_t number) const;
  void record_read(ProgramBuilder& pb, const DecoderIo::Source& source);
  void record_next(ProgramBuilder& pb, std::int64_t source_tokens);
  Buffer attend_to_past(ProgramBuilder& pb, const BlockLayers& layers, const AttentionInUse& w,
                        Buffer x, Buffer table, const Cache& cache) const;
  void record_reorder(ProgramBuilder& pb);

  DecoderJob job_;
  DecoderIo io_;
  std::optional<BlockWeights> own_weights_;
  Adapters own_adapters_;
  BlockWeights* weights_ = nullptr;
  const Adapters* adapters_ = nullptr;
  std::vector<Cache> caches_;  // by block
};

}  // namespace ballast::t5
