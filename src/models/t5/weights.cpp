#include "models/t5/weights.h"

#include <algorithm>

#include "core/error.h"
#include "core/non_finite.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "models/stored_tensor.h"
#include "models/t5/params.h"

namespace ballast::t5 {
namespace {

std::vector<WeightGroup> empty_groups(const Config& c) {
  std::vector<WeightGroup> groups(to_size(group_count(c)));
  const auto at = [&](int g) -> WeightGroup& { return groups[to_size(g)]; };
  at(kSmallGroup) = {.name = "norms and biases", .tensors = {}, .keep_precision = true};
  for (const Side side : {Side::encoder, Side::decoder}) {
    for (std::int64_t b = 0; b < layers_of(c, side); ++b) {
      at(block_group(c, side, b)).name = fmt::format("{}.block.{}", name_of(side), b);
    }
  }
  if (c.decoder_layers == 0) return groups;
  at(embedding_group(c)) = {.name = "embedding", .tensors = {}, .keep_precision = true};
  if (!c.tied) at(head_group(c)) = {.name = "head", .tensors = {}, .keep_precision = true};
  return groups;
}

// Checked: of this shape, floating-point numbers.
StoredTensor stored_tensor(const WeightFiles& checkpoint, const TensorMap& names,
                           const std::string& name, const Shape& shape) {
  const NamedTensor* found = names.find(name);
  if (!found) fail_no_tensor(checkpoint, name);
  return stored_tensor(checkpoint, name, found->tensor, found->scale, shape);
}

void refuse_scale(const WeightFiles& checkpoint, const StoredTensor& t) {
  if (!t.scale) return;
  fail(ErrorCode::input, "{}: {} has a scale; only matrices of blocks may", checkpoint.path(),
       t.name);
}

}  // namespace

std::vector<WeightGroup> weight_groups(const Config& config, const WeightFiles& checkpoint,
                                       const TensorMap& names) {
  std::vector<WeightGroup> groups = empty_groups(config);
  each_parameter(config, [&](int group, const std::string& name, const Shape& shape) {
    StoredTensor t = stored_tensor(checkpoint, names, name, shape);
    if (shape.rank() < 2 || group == kSmallGroup || group >= embedding_group(config)) {
      refuse_scale(checkpoint, t);
    }
    if (name == kEmbeddingName && size_of(t.data.dtype) == 1) {
      fail(ErrorCode::input,
           "{}: {} is {}; an encoder-decoder needs its embedding table in 16 bits or "
           "more",
           checkpoint.path(), name, t.data.dtype);
    }
    groups[to_size(group)].tensors.push_back(std::move(t));
  });
  return groups;
}

std::vector<WeightGroup> planned_groups(const Config& config, DType dtype) {
  std::vector<WeightGroup> groups = empty_groups(config);
  each_parameter(config, [&](int group, const std::string& name, const Shape& shape) {
    groups[to_size(group)].tensors.push_back(planned_tensor(name, shape, dtype));
  });
  return groups;
}

StoredBytes embedding_table(const Config& config, const WeightFiles& checkpoint,
                            const TensorMap& names) {
  StoredTensor t =
      stored_tensor(checkpoint, names, kEmbeddingName, {config.vocabulary, config.d_model});
  refuse_scale(checkpoint, t);
  return t.data;
}

namespace {

Extent row_of(const StoredBytes& table, std::int32_t id) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(table.shape[1]) * size_of(table.dtype);
  const StoredBytes& t = table;
  return {t.extent.file, t.extent.offset + static_cast<std::uint64_t>(id) * bytes, bytes};
}

// One by one a disk takes longer for the rows of many prompts than for the model: so many are
// expected, then read.
constexpr std::size_t kRowsAtOnce = 64;

}  // namespace

void expect_rows(const StoredBytes& table, std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= table.shape[0]) continue;  // read_rows() complains
    const Extent row = row_of(table, id);
    row.file->expect(row.offset, row.bytes);
  }
}

void read_rows(const StoredBytes& table, std::span<const std::int32_t> ids, const TensorView& to,
               ThreadPool* pool) {
  const auto rows = static_cast<std::int64_t>(ids.size());
  check(to.dtype == table.dtype && to.shape == Shape({rows, table.shape[1]}) && to.contiguous(),
        "rows of {} {} were to go into {} {}", table.dtype, table.shape, to.dtype, to.shape);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= table.shape[0]) {
      fail(ErrorCode::input,
           fmt::format("token {} is {}; the embedding table of {} has {} rows", i, ids[i],
                       table.extent.file->path(), table.shape[0]),
           {{"use the tokenizer of this model", "its ids are rows of the table"}});
    }
  }
  const auto read_some = [&](std::int64_t part, int) {
    const std::size_t first = to_size(part) * kRowsAtOnce;
    const auto some = ids.subspan(first, std::min(kRowsAtOnce, ids.size() - first));
    expect_rows(table, some);
    for (std::size_t i = 0; i < some.size(); ++i) {
      const Extent row = row_of(table, some[i]);
      const std::span<std::byte> values(to.data + (first + i) * row.bytes, row.bytes);
      row.file->read(row.offset, values);
      if (first_non_finite(values, table.dtype)) {
        fail(ErrorCode::input,
             "{}: row {} of tensor \"{}\" holds NaN or infinity; with it every result "
             "would be NaN",
             row.file->path(), some[i], kEmbeddingName);
      }
    }
  };
  const auto parts = static_cast<std::int64_t>((ids.size() + kRowsAtOnce - 1) / kRowsAtOnce);
  if (pool) return pool->parallel(parts, read_some);
  for (std::int64_t p = 0; p < parts; ++p) read_some(p, 0);
}

}  // namespace ballast::t5
