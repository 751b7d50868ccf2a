#include "models/wan/lora_merge.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/to_size.h"
#include "ops/linear/sgemm.h"

namespace ballast::wan {
namespace {

constexpr std::int64_t kRankPiece = 256;        // rows of `down` in memory at once
constexpr std::int64_t kMaxColumns = 64 << 20;  // of a tensor that is changed

DType weight_dtype(const WeightFiles& model, const WanTensor& t) {
  return model.dtype(t.source.tensor);
}

}  // namespace

std::int64_t LoraMerge::columns_of(const Shape& shape) {
  std::int64_t n = 1;
  for (int i = 1; i < shape.rank(); ++i) n *= shape[i];
  return n;
}

LoraMerge::LoraMerge(const WeightFiles& model, const TensorMap& names,
                     std::span<const LoraStrength> loras, ThreadPool& pool)
    : model_(model), pool_(pool) {
  for (const LoraStrength& lora : loras) collect(lora, names);
}

void LoraMerge::collect(const LoraStrength& lora, const TensorMap& names) {
  const std::string& path = lora.lora->path();
  bool any = false;
  const auto add = [&](const std::string& tensor, const LoraNumbers& part, const Delta& delta,
                       std::int64_t rows, std::int64_t elements) {
    const WanTensor* t = names.find(tensor);
    if (!t) {
      unused_.push_back(fmt::format("{}: {} (the model has no {})", path, printable(part.key),
                                    printable(tensor)));
      return;
    }
    const Shape& shape = t->source.tensor.entry->shape;
    if (shape.rank() == 0 || shape[0] != rows || shape.elements() != elements ||
        columns_of(shape) > kMaxColumns) {
      fail(ErrorCode::input,
           fmt::format("{}: {} does not fit the model: it makes a {} x {} matrix, {} of {} is {}",
                       path, printable(part.key), rows, rows == 0 ? 0 : elements / rows,
                       printable(tensor), model_.path(), shape),
           {{"ballast inspect " + path, "shows which model it is for"}});
    }
    if (!info(weight_dtype(model_, *t)).floating) {
      fail(ErrorCode::input, "{}: {} is {}; nothing can be added to it", model_.path(),
           printable(tensor), weight_dtype(model_, *t));
    }
    any = true;
    deltas_[tensor].push_back(delta);
  };
  const auto strength = static_cast<float>(lora.strength);
  for (const LoraModule& m : lora.lora->modules()) {
    const std::string weight = m.name + ".weight", bias = m.name + ".bias";
    if (m.rank > 0) {
      const auto factor = static_cast<float>(lora.strength * m.scale());
      add(weight, m.down, {.diff = nullptr, .module = &m, .factor = factor}, m.out(),
          m.out() * m.in());
    }
    const auto difference = [&](const std::string& tensor, const LoraNumbers& n) {
      const std::int64_t rows = rows_of(n.shape);
      add(tensor, n, {.diff = &n, .module = nullptr, .factor = strength}, rows, n.elements());
    };
    if (m.diff) difference(weight, *m.diff);
    if (m.diff_b) difference(bias, *m.diff_b);
  }
  for (const std::string& key : lora.lora->unused()) {
    unused_.push_back(fmt::format("{}: {}", path, printable(key)));
  }
  if (any) return;
  fail(ErrorCode::input,
       fmt::format("{} changes nothing in {}: the model has none of its {} modules", path,
                   model_.path(), lora.lora->modules().size()),
       {{"ballast inspect " + path, "shows which model it is for"}});
}

void LoraMerge::read_weight(const WanTensor& t, std::int64_t first, std::int64_t count,
                            std::span<float> to) const {
  const Shape& shape = t.source.tensor.entry->shape;
  const std::int64_t columns = columns_of(shape);
  const auto numbers = [&](const WeightTensor& c) {
    return LoraNumbers{.shape = c.entry->shape,
                       .dtype = model_.dtype(c),
                       .memory = nullptr,
                       .extent = model_.extent(c),
                       .key = std::string(c.entry->name)};
  };
  numbers(t.source.tensor).read(first * columns, to);
  if (!t.source.scale) return;
  const LoraNumbers scale = numbers(*t.source.scale);
  const std::int64_t per_row =
      t.source.layout == ScaleLayout::tensor ? 0 : scale.elements() / rows_of(shape);
  std::vector<float> scales(to_size(std::max<std::int64_t>(1, per_row)));
  if (per_row == 0) scale.read(0, scales);
  const std::int64_t width = columns / std::ssize(scales);
  float* w = to.data();
  for (std::int64_t row = 0; row < count; ++row) {
    if (per_row > 0) scale.read((first + row) * per_row, scales);
    for (const float s : scales) {
      for (std::int64_t i = 0; i < width; ++i) *w++ *= s;
    }
  }
}

void LoraMerge::add_product(const Delta& d, std::int64_t columns, std::int64_t first,
                            std::int64_t count, std::span<float> to) {
  const LoraModule& m = *d.module;
  up_.resize(to_size(count * m.rank));
  m.up.read(first * m.rank, up_);
  for (std::int64_t k = 0; k < m.rank; k += kRankPiece) {
    const std::int64_t depth = std::min(kRankPiece, m.rank - k);
    if (down_of_ != &m || down_first_ != k) {
      down_of_ = nullptr;  // if reading fails
      down_.resize(to_size(depth * columns));
      m.down.read(k * columns, down_);
      down_of_ = &m, down_first_ = k;
    }
    // Calls of one size but for the last rows of the tensor: their bits are the tensor's own.
    pool_.parallel((count + kRows - 1) / kRows, [&](std::int64_t task, int) {
      const std::int64_t row = task * kRows;
      ops::sgemm({.m = std::min(kRows, count - row),
                  .n = columns,
                  .k = depth,
                  .alpha = d.factor,
                  .a = up_.data() + row * m.rank + k,
                  .lda = m.rank,
                  .b = down_.data(),
                  .ldb = columns,
                  .beta = 1,
                  .c = to.data() + row * columns,
                  .ldc = columns});
    });
  }
}

void LoraMerge::rows(const WanTensor& t, std::int64_t first, std::int64_t count,
                     std::span<float> to) {
  const Shape& shape = t.source.tensor.entry->shape;
  const std::int64_t columns = columns_of(shape);
  check(first % kRows == 0 && (count % kRows == 0 || first + count == rows_of(shape)),
        "rows {}+{} of {}", first, count, shape);
  check(std::ssize(to) == count * columns, "{} numbers for {} rows of {}", to.size(), count, shape);
  read_weight(t, first, count, to);
  const auto found = deltas_.find(t.name);
  if (found == deltas_.end()) return;
  for (const Delta& d : found->second) {
    if (d.module) {
      add_product(d, columns, first, count, to);
      continue;
    }
    diff_.resize(to.size());
    d.diff->read(first * columns, diff_);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += d.factor * diff_[i];
  }
}

}  // namespace ballast::wan
