#include "models/wan/weights.h"

#include "core/error.h"
#include "core/to_size.h"
#include "models/wan/params.h"

namespace ballast::wan {
namespace {

std::vector<WeightGroup> empty_groups(const Config& config) {
  std::vector<WeightGroup> groups(to_size(group_count(config)));
  groups.front() = {.name = "embed", .tensors = {}, .keep_precision = true};
  for (std::int64_t b = 0; b < config.layers; ++b) {
    groups[to_size(block_group(b))].name = fmt::format("blocks.{}", b);
  }
  groups.back() = {.name = "head", .tensors = {}, .keep_precision = true};
  return groups;
}

StoredBytes stored_bytes(const WeightFiles& checkpoint, const WeightTensor& t) {
  return {.shape = t.entry->shape, .dtype = checkpoint.dtype(t), .extent = checkpoint.extent(t)};
}

// find(name) -> {tensor, scale}, nullopt when there is none.
struct Found {
  WeightTensor tensor;
  std::optional<WeightTensor> scale;
};
template <class Find>
std::vector<WeightGroup> groups_of(const Config& config, const WeightFiles& checkpoint,
                                   Find&& find) {
  std::vector<WeightGroup> groups = empty_groups(config);
  each_parameter(config, [&](int group, const std::string& name, const Shape& shape) {
    const std::optional<Found> found = find(name);
    if (!found) {
      fail(ErrorCode::input, fmt::format("{} has no tensor {}", checkpoint.path(), name),
           {{"ballast inspect " + checkpoint.path(), "lists the tensors it has"}});
    }
    if (found->tensor.entry->shape != shape) {
      fail(ErrorCode::input, "{}: {} is {}, expected {} for a model of dim {}, ffn_dim {}",
           checkpoint.path(), name, found->tensor.entry->shape, shape, config.dim, config.ffn_dim);
    }
    StoredTensor stored = {
        .name = name, .data = stored_bytes(checkpoint, found->tensor), .scale = {}};
    if (!info(stored.data.dtype).floating) {
      fail(ErrorCode::input, "{}: {} is {}; weights are floating-point numbers", checkpoint.path(),
           name, stored.data.dtype);
    }
    if (found->scale) stored.scale = stored_bytes(checkpoint, *found->scale);
    groups[to_size(group)].tensors.push_back(std::move(stored));
  });
  return groups;
}

}  // namespace

std::vector<WeightGroup> weight_groups(const Config& config, const WeightFiles& checkpoint,
                                       const TensorMap& names) {
  return groups_of(config, checkpoint, [&](const std::string& name) -> std::optional<Found> {
    const WanTensor* t = names.find(name);
    if (!t) return std::nullopt;
    return Found{t->source.tensor, t->source.scale};
  });
}

std::vector<WeightGroup> weight_groups(const Config& config, const WeightFiles& checkpoint,
                                       std::string_view prefix) {
  return groups_of(config, checkpoint, [&](const std::string& name) -> std::optional<Found> {
    const WeightTensor* t = checkpoint.find(fmt::format("{}{}", prefix, name));
    if (!t) return std::nullopt;
    return Found{*t, std::nullopt};
  });
}

std::vector<WeightGroup> planned_groups(const Config& config, DType dtype) {
  std::vector<WeightGroup> groups = empty_groups(config);
  each_parameter(config, [&](int group, const std::string& name, const Shape& shape) {
    const auto bytes = static_cast<std::uint64_t>(shape.elements()) * size_of(dtype);
    groups[to_size(group)].tensors.push_back(
        {.name = name,
         .data = {.shape = shape, .dtype = dtype, .extent = {.file = nullptr, .bytes = bytes}},
         .scale = {}});
  });
  return groups;
}

}  // namespace ballast::wan
