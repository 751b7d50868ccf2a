#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "infer/require_plan.h"
#include "infer/text_model.h"
#include "models/t5/inference_fit_job.h"

namespace ballast::infer {

using TextEncoderOptions = TextModelOptions;

// Where the seconds of a call went.
struct TextEncoderTimes {
  double planning = 0,
         opening = 0;              // recording and planning; arenas, queues, what libraries prepare
  double loading = 0;              // what stays
  double passes = 0, results = 0;  // from disk to states; handing them over
  double rows =
      0;  // of the passes: reading the tokens' rows of the embedding table, beside the disk
  double disk_busy = 0, disk_waiting = 0, compute_busy = 0;  // of the passes' lanes
};

// Rows of one prompt: [tokens, width] f32.
struct TextStates {
  std::int64_t tokens = 0, width = 0;
  std::vector<float> values;
};

// The text encoder of a checkpoint (T5 family; the UMT5-XXL of Wan), streamed block by block. Owns
// no memory between calls beyond the headers of its files. Its embedding table is never loaded: the
// rows of the prompts' tokens are read from the file one by one.
class TextEncoder {
 public:
  // path: a file, an index with its shards, or a folder. Fails with ErrorCode::input when it holds
  // no such encoder. A decoder that is in it, too, is left alone.
  explicit TextEncoder(const std::string& path, TextEncoderOptions options = {});

  const t5::Config& config() const { return model_.config; }
  t5::Dialect dialect() const { return model_.names.dialect(); }

  // To be planned for prompts of so many tokens each; nothing is run and no tensor is read. Without
  // a policy in the options: the fastest predicted plan. A single pass streams, which takes as long
  // as the slower of disk and compute; several have all weights resident if that fits.
  CommandPart part(std::span<const std::int64_t> lengths) const;

  // The last states of every prompt, of its own tokens alone. A prompt's states do not depend on
  // the others. Fails with ErrorCode::refused, with advice, when no plan fits, with
  // ErrorCode::input when an id is no row of the embedding table.
  std::vector<TextStates> encode(std::span<const std::vector<std::int32_t>> prompts,
                                 TextEncoderTimes* times = nullptr) const;

 private:
  t5::EncoderJob job(std::span<const std::int64_t> lengths) const;

  TextModel model_;
  std::vector<WeightGroup> groups_;
  StoredBytes table_;
};

}  // namespace ballast::infer
