#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/require_plan.h"
#include "infer/text_model.h"
#include "models/t5/inference_fit_job.h"
#include "models/t5/lora_file.h"
#include "plan/runner.h"

namespace ballast::infer {

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  int beams = 1;  // 1: the best token, again and again
  double length_penalty = 1;
  bool early_stopping = false;
};

// An adapter that the model is used with.
struct AppliedAdapter {
  std::string folder;  // as PEFT has it (models/t5/lora_file.h); "": none
  double strength = 1;
};

// Where a call of generate() is: said after every token.
struct GeneratedToken {
  std::size_t source = 0;        // whose text is being written
  bool last = false;             // its text is complete
  Bytes device = {}, host = {};  // high-water marks of the arenas
};
using OnToken = std::function<void(const GeneratedToken&)>;

// The text that follows one source, token by token, by the programs of a decoder whose weights are
// loaded. A padded decoder takes the smallest of its shapes that holds the source. Sequences are as
// TextGenerator::generate() gives them; after_token(last) comes after each.
std::vector<std::int32_t> write_text(const t5::Decoder& decoder, Runner& runner,
                                     std::span<const std::int32_t> source,
                                     const GenerateOptions& options,
                                     const std::function<void(bool last)>& after_token = nullptr);

// Writes text with an encoder-decoder of the T5 family: token by token with a cache of keys and
// values. Owns no memory between calls beyond the headers of its files.
class TextGenerator {
 public:
  // path: a file, an index with its shards, or a folder. Fails with ErrorCode::input when it holds
  // no encoder-decoder, or when the adapter does not fit it.
  explicit TextGenerator(const std::string& path, TextModelOptions options = {},
                         const AppliedAdapter& adapter = {});

  const t5::Config& config() const { return model_.config; }

  // For sources of so many tokens each; nothing is run and no tensor is read. Without a policy in
  // the options all weights are resident if that fits: every token visits every block. Fails with
  // ErrorCode::refused where nothing fits.
  fit::PlannedRun require_plan(std::span<const std::int64_t> lengths,
                               const GenerateOptions& options,
                               const PossibleChanges& changes = nullptr) const;
  PlanTitle title(std::span<const std::int64_t> lengths, const GenerateOptions& options) const;

  // The tokens that follow the start token, one sequence for each source; the end token is the last
  // one if it came in time. Fails with ErrorCode::refused when the plan does not fit, with
  // ErrorCode::input when a source is empty or has an id that is no row of the embedding table.
  std::vector<std::vector<std::int32_t>> generate(
      std::span<const std::vector<std::int32_t>> sources, const GenerateOptions& options,
      const OnToken& on_token = nullptr) const;

 private:
  t5::DecoderJob job(std::span<const std::int64_t> lengths, const GenerateOptions& options) const;
  fit::Request request(std::span<const std::int64_t> lengths, const GenerateOptions& options) const;

  TextModel model_;
  std::vector<WeightGroup> groups_;
  std::optional<t5::LoraFile> lora_;
  double strength_ = 1;
};

}  // namespace ballast::infer
