#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_cache.h"
#include "infer/text_generator.h"
#include "train/recipes/rouge.h"

namespace ballast::train {

struct PredictionJob {
  std::string model;                   // a folder, with its tokenizer
  infer::AppliedAdapter adapter = {};  // what was trained, where that is not the model itself
  std::string output;                  // a file of JSON Lines: input, target, prediction
  std::int64_t samples = 0;            // the first so many of the texts; 0: all
  infer::GenerateOptions options;
  infer::TextModelOptions machine;
};

struct Prediction {
  std::string input, target, text;
};
struct Predictions {
  std::int64_t count = 0, exact = 0;  // texts that are the target to the letter
  Rouge rouge;                        // mean over all
  std::vector<Prediction> first;      // a few of them, to look at
};

// Writes a text for every sample, a few hundred at a time, and compares it with
// the target. Fails with ErrorCode::refused where the model does not fit.
Predictions predict_texts(const data::TokenCache& texts, const PredictionJob& job);

}  // namespace ballast::train
