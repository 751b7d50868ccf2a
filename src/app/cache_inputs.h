#pragma once

#include <string>
#include <vector>

#include "data/encoding_work.h"
#include "train/config.h"

namespace ballast {

// What `ballast cache` works with, before any weight is read.
struct CacheInputs {
  std::string vae, text_encoder, tokenizer;  // "": there is none, and that phase is left out
  std::string model;                         // "wan2.2-i2v-a14b", or what is known without one
  data::EncodingSearch search;               // of the first dataset; others differ by path
  std::vector<data::EncodingWork> work;      // by dataset: training's, then those of evaluation
  DType store = DType::bf16;

  std::int64_t texts() const;
  std::int64_t media() const;
};

// Finds the files, what the model takes of its samples (from the transformer where there is one,
// else from the VAE), and what of the datasets is not encoded yet. Fails with ErrorCode::input
// where captions or media are to be encoded and nothing is there to do it.
CacheInputs find_cache_inputs(const train::TrainConfig& config);

}  // namespace ballast
