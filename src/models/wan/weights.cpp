#include "models/wan/weights.h"

#include "core/to_size.h"
#include "models/stored_tensor.h"
#include "models/wan/params.h"

namespace ballast::wan {
namespace {

std::string sizes_of(const Config& c) {
  return fmt::format(" for a model of dim {}, ffn_dim {}", c.dim, c.ffn_dim);
}

std::vector<WeightGroup> empty_groups(const Config& config) {
  std::vector<WeightGroup> groups(to_size(group_count(config)));
  groups.front() = {.name = "embed", .tensors = {}, .keep_precision = true};
  for (std::int64_t b = 0; b < config.layers; ++b) {
    groups[to_size(block_group(b))].name = fmt::format("blocks.{}", b);
  }
  groups.back() = {.name = "head", .tensors = {}, .keep_precision = true};
  return groups;
}

}  // namespace

std::vector<WeightGroup> weight_groups(const Config& config, const WeightFiles& checkpoint,
                                       const TensorMap& names) {
  std::vector<WeightGroup> groups = empty_groups(config);
  each_parameter(config, [&](int group, const std::string& name, const Shape& shape) {
    const WanTensor* t = names.find(name);
    if (!t) fail_no_tensor(checkpoint, name);
    groups[to_size(group)].tensors.push_back(stored_tensor(
        checkpoint, name, t->source.tensor, t->source.scale, shape, sizes_of(config)));
  });
  return groups;
}

std::vector<WeightGroup> weight_groups(const Config& config, const WeightFiles& checkpoint,
                                       std::string_view prefix) {
  std::vector<WeightGroup> groups = empty_groups(config);
  each_parameter(config, [&](int group, const std::string& name, const Shape& shape) {
    const WeightTensor* t = checkpoint.find(fmt::format("{}{}", prefix, name));
    if (!t) fail_no_tensor(checkpoint, name);
    groups[to_size(group)].tensors.push_back(
        stored_tensor(checkpoint, name, *t, {}, shape, sizes_of(config)));
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

}  // namespace ballast::wan
