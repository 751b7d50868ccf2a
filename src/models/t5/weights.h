#pragma once

#include <span>
#include <vector>

#include "core/tensor.h"
#include "models/t5/config.h"
#include "models/t5/names.h"
#include "nn/block_weights.h"

namespace ballast::t5 {

// The model's parameters as groups in the order of each_parameter(), each tensor where the
// checkpoint has it. Fails with ErrorCode::input when one is missing, has another shape, or a dtype
// that cannot be computed with. The checkpoint must outlive the groups.
std::vector<WeightGroup> weight_groups(const Config& config, const WeightFiles& checkpoint,
                                       const TensorMap& names);

// The same for a model that is not there yet, all tensors in one dtype: for planning.
std::vector<WeightGroup> planned_groups(const Config& config, DType dtype);

// Where the embedding table is, for an encoder that takes rows of it one by one.
StoredBytes embedding_table(const Config& config, const WeightFiles& checkpoint,
                            const TensorMap& names);

// Tells the system that read_rows() with these ids will follow. One by one a disk takes longer for
// the rows of many prompts than for the model.
void expect_rows(const StoredBytes& table, std::span<const std::int32_t> ids);

// Reads the rows of a table [V, C] that the ids name, as they are stored, into [ids.size(), C];
// with a pool on all its threads. Fails with ErrorCode::input for an id that is none of its rows.
void read_rows(const StoredBytes& table, std::span<const std::int32_t> ids, const TensorView& to,
               ThreadPool* pool = nullptr);

}  // namespace ballast::t5
