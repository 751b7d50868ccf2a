#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/t5/block.h"
#include "models/t5/config.h"
#include "models/t5/weights_in_use.h"
#include "nn/taps.h"

namespace ballast::t5 {

// Fills the rows of prompts inside their pass, beside the first weights that come from disk.
// Allocates nothing.
struct RowsSource {
  std::function<void(std::size_t pass, std::size_t prompt, const TensorView& to)> read;
  std::function<void(std::size_t pass)> expect;  // those of a pass that follows

  explicit operator bool() const { return static_cast<bool>(read); }
};

// Everything that decides what is recorded of an encoder alone.
struct EncoderJob {
  Config config = {};
  MemoryPolicy policy = {};
  Precision precision = {};
  WeightFormat format = WeightFormat::stored;
  // Tokens of every prompt, by pass: those of a pass share a visit of each block.
  std::vector<std::vector<std::int64_t>> passes = {};
  DType rows = DType::bf16;  // of the embedding rows that the host gives
  RowsSource source = {};    // none: they are there before a pass is run
};

// One prompt: what the host gives before its pass and takes after it (host tier). Passes share this
// memory.
struct PromptIo {
  Buffer rows;    // [L, C]: the tokens' rows of the embedding table, as they are stored
  Buffer states;  // [L, C] f32
};

struct PassIo {
  std::string program;
  std::vector<PromptIo> prompts;
};

// The encoder as recorded programs: "load", and "encode" for every pass. Padding does not exist:
// every prompt is computed with its own length.
class Encoder {
 public:
  // groups: as each_parameter() lists them (models/t5/weights.h).
  Encoder(ProgramSet& set, EncoderJob job, std::vector<WeightGroup> groups, Taps* taps = nullptr);

  const std::vector<PassIo>& passes() const { return passes_; }
  const EncoderJob& job() const { return job_; }

 private:
  void declare_io(ProgramBuilder& pb);
  void read_rows(ProgramBuilder& pb, std::size_t pass);
  void record(ProgramBuilder& pb, const PassIo& pass, Taps* taps);

  EncoderJob job_;
  std::vector<PassIo> passes_;
  std::optional<BlockWeights> weights_;
};

// How attention of one prompt is computed: on a GPU by the kernels for short sequences.
RowsOfSamples rows_of_prompt(const ProgramBuilder& pb, const Config& config,
                             const Precision& precision, std::int64_t tokens, Buffer lengths = {});

// [H, 2 L - 1]: what self-attention of L tokens adds to its scores.
Buffer score_bias(ProgramBuilder& pb, const Config& config, Side side, Buffer table,
                  std::int64_t tokens);

}  // namespace ballast::t5
