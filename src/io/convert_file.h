#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace ballast {

struct ConvertOptions {
  // Floating tensors become this. Without it they stay what they are, and quantised ones become
  // bf16.
  std::optional<DType> dtype;
  std::function<void(std::uint64_t total)> begin;  // before the first byte: how many there will be
  std::function<void(std::uint64_t bytes)> progress;  // of them, as they are written
};

struct ConvertedFile {
  std::string_view container;  // of the input: "PyTorch", "GGUF" or "safetensors"
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;  // of the tensors written
  std::vector<std::string> notes;
};

// A PyTorch or GGUF file, or a model that Checkpoint opens, as one safetensors file, written
// atomically with at most 64 MiB of it in memory (as much again for tensors that are not
// contiguous). Names stay; those of T5 in GGUF files become Hugging Face's. A value that the dtype
// cannot hold is ErrorCode::input.
ConvertedFile convert_to_safetensors(const std::string& from, const std::string& to,
                                     const ConvertOptions& options);

// "enc.blk.0.attn_q.weight" -> "encoder.block.0.layer.0.SelfAttention.q.weight"
std::string hugging_face_t5_name(std::string name);

}  // namespace ballast
