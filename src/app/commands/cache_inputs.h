#pragma once

#include <string>
#include <vector>

#include "data/encoding_work.h"
#include "train/config/config.h"

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

// Who encodes: `cache` everything, `train` what its run lacks.
enum class CacheUse : std::uint8_t { cache, train };

// Finds the files, what the model takes of its samples (from the transformer where there is one,
// else from the VAE), and what of the datasets is not encoded yet. Fails with ErrorCode::input
// where captions or media are to be encoded and nothing is there to do it.
//
// CacheUse::train leaves out folders of encoded samples, which training reads as they are;
// musubi-tuner's datasets where a VAE, a text encoder or a tokenizer is missing (its training reads
// caches alone); and the empty caption where the run does not use it.
CacheInputs find_cache_inputs(const train::TrainConfig& config, CacheUse use);

}  // namespace ballast
