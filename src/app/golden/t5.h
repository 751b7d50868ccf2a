#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/golden/results.h"
#include "models/t5/block.h"
#include "models/t5/names.h"

namespace ballast {

// What the golden files of the T5 family have in common.

// The model that the file's tensors describe, with what only its settings say.
t5::Config golden_t5_config(const GoldenFile& file, const t5::TensorMap& names);

// The tokens of every sample that its mask lets through.
std::vector<std::vector<std::int32_t>> golden_tokens(const GoldenFile& file, std::string_view ids,
                                                     std::string_view mask);

// [samples, rows, width]; the rows behind a sample's own do not count.
GoldenTensor padded_rows(std::string name, std::int64_t rows, std::int64_t width,
                         std::span<const std::vector<float>> samples);

Precision golden_t5_precision(const VerifyOptions& options);

}  // namespace ballast
