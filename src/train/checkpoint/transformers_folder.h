#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "models/t5/config.h"
#include "models/t5/lora_file.h"
#include "train/checkpoint/checkpoint.h"

namespace ballast::train {

// A model's folder as transformers reads and writes it.

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr Bytes kMaxShard{5'000'000'000};

// What from_pretrained() needs beside the weights: config.json and generation_config.json, copied
// from `model` or made from the sizes where it has none, and every file of the tokenizer. In
// config.json the class, the weights' type and the tie of the head are those of what is written.
// `tokenizer`: a folder or file; "": the model's. Each file appears complete or not at all.
void write_model_files(const std::string& model, const std::string& tokenizer,
                       const t5::Config& config, DType weights, const std::string& to);

// The same for an adapter as PEFT has it: adapter_config.json and the tokenizer. `from`: the
// model's folder or a checkpoint's.
void write_adapter_files(const std::string& from, const std::string& tokenizer,
                         const t5::AdapterConfig& config, const std::string& to);

// One file of tensors as transformers writes it, complete or not at all.
void write_tensors(const std::string& path, std::span<const SavedTensor> tensors);

// model.safetensors, or above the limit model-00001-of-00003.safetensors and so on with
// model.safetensors.index.json, which comes last. Files of an earlier model of other number go.
// Returns the paths.
std::vector<std::string> write_model_weights(const std::string& folder,
                                             std::span<const SavedTensor> tensors,
                                             Bytes max_shard = kMaxShard);

}  // namespace ballast::train
