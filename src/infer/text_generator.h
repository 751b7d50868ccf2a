#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "infer/text_model.h"
#include "models/t5/decoder.h"

namespace ballast::infer {

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  int beams = 1;  // 1: the best token, again and again
  double length_penalty = 1;
  bool early_stopping = false;
};

// Where a call of generate() is: said after every token.
struct GeneratedToken {
  std::size_t source = 0;        // whose text is being written
  bool last = false;             // its text is complete
  Bytes device = {}, host = {};  // high-water marks of the arenas
};
using OnToken = std::function<void(const GeneratedToken&)>;

// Writes text with an encoder-decoder of the T5 family: token by token with a cache of keys and
// values. Owns no memory between calls beyond the headers of its files.
class TextGenerator {
 public:
  // path: a file, an index with its shards, or a folder. Fails with ErrorCode::input when it holds
  // no encoder-decoder.
  explicit TextGenerator(const std::string& path, TextModelOptions options = {});

  const t5::Config& config() const { return model_.config; }

  // For sources of so many tokens each; nothing is run and no tensor is read. Without a policy in
  // the options all weights are resident if that fits: every token visits every block.
  std::variant<TextModelPlan, Refusal> plan(std::span<const std::int64_t> lengths,
                                            const GenerateOptions& options) const;

  // The tokens that follow the start token, one sequence for each source; the end token is the last
  // one if it came in time. Fails with ErrorCode::refused when the plan does not fit, with
  // ErrorCode::input when a source is empty or has an id that is no row of the embedding table.
  std::vector<std::vector<std::int32_t>> generate(
      std::span<const std::vector<std::int32_t>> sources, const GenerateOptions& options,
      const OnToken& on_token = nullptr) const;

 private:
  t5::DecoderJob job(const MemoryPolicy& policy, std::span<const std::int64_t> lengths,
                     const GenerateOptions& options) const;

  TextModel model_;
  std::vector<WeightGroup> groups_;
};

}  // namespace ballast::infer
