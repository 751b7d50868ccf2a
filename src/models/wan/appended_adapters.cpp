#include "models/wan/appended_adapters.h"

#include <algorithm>

#include "core/to_size.h"
#include "models/wan/dit_pass.h"

namespace ballast::wan {
namespace {

// As adapter_targets() lists them.
constexpr std::size_t kSelfQ = 0, kSelfV = 2, kCrossK = 5, kCrossV = 6;

// q, k and v multiply the columns of all three, two thirds of them zeros. Above this rank that
// costs more than it saves.
constexpr std::int64_t kMaxRank = 128;

}  // namespace

AppendedAdapters::AppendedAdapters(const DitJob& job) : job_(job) {
  any_ = (job.mode == Mode::lora || (job.mode == Mode::infer && job.adapters_in_inference)) &&
         !job.lora.drops() && !job.fp8_matmul && job.lora.rank <= kMaxRank;
  const BlockParams<Shape> shapes = block_shapes(job.config);
  for (const AdapterTarget& t : adapter_targets(job.config)) {
    names_.push_back(t.name);
    std::size_t tensor = 0;
    BlockParams<Shape>::each(shapes, "", [&](const std::string& name, const Shape&) {
      if (name == std::string(t.name) + ".weight") tensors_.push_back(tensor);
      ++tensor;
    });
  }
  check(tensors_.size() == names_.size(), "{} of {} adapted layers are parameters of a block",
        tensors_.size(), names_.size());
}

bool AppendedAdapters::adapted(std::int64_t block, std::size_t target) const {
  const std::string module = fmt::format("blocks.{}.{}", block, names_[target]);
  return std::ranges::find(job_.lora.excluded, module) == job_.lora.excluded.end();
}

AppendedColumns AppendedAdapters::columns_of(std::int64_t block, std::size_t target) const {
  if (!any_ || target == kCrossK || target == kCrossV) return {};
  const bool shared = target <= kSelfV;
  const std::size_t begin = shared ? kSelfQ : target, end = shared ? kSelfV + 1 : target + 1;
  for (std::size_t t = begin; t < end; ++t) {
    if (!adapted(block, t)) return {};
  }
  const std::int64_t own = AppendedAdapter::padded(job_.lora.rank);
  AppendedColumns p;
  p.columns = static_cast<std::int64_t>(end - begin) * own;
  p.first = static_cast<std::int64_t>(target - begin) * own;
  if (target == begin) {
    for (std::size_t t = begin; t < end; ++t) p.down.push_back(t);
  }
  return p;
}

std::optional<std::size_t> AppendedAdapters::target_of(std::size_t tensor) const {
  const auto found = std::ranges::find(tensors_, tensor);
  if (found == tensors_.end()) return std::nullopt;
  return to_size(found - tensors_.begin());
}

RowPadding AppendedAdapters::padding(int group, std::size_t tensor, DType dtype) const {
  if (group < block_group(0) || group >= head_group(job_.config)) return {};
  const auto target = target_of(tensor);
  if (!target || dtype != job_.precision.activation) return {};
  const AppendedColumns p = columns_of(group - block_group(0), *target);
  if (p.columns == 0) return {};
  return {.rows = p.down.empty() ? 0 : p.columns,
          .columns = AppendedAdapter::room(p.columns, dtype)};
}

std::int64_t AppendedAdapters::gradient_room() const {
  return any_ && job_.precision.residual == job_.precision.activation
             ? AppendedAdapter::padded(job_.lora.rank)
             : 0;
}

}  // namespace ballast::wan
