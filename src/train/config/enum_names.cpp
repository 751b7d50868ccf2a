#include "train/config/enum_names.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/path_kind.h"

namespace ballast::train {

namespace fs = std::filesystem;

OptimizerOptions optimizer_defaults(OptimizerKind kind, DType parameter) {
  OptimizerOptions o;
  o.kind = kind;
  const bool narrow = parameter != DType::f32;
  switch (kind) {
    case OptimizerKind::adamw:
      o.state_dtype = parameter;  // torch keeps moments as it keeps parameters
      break;
    case OptimizerKind::adamw_optimi:
    case OptimizerKind::stableadamw:
      o.beta2 = 0.99;
      o.eps = 1e-6;
      o.state_dtype = parameter;
      o.rounding = narrow ? UpdateRounding::kahan : UpdateRounding::nearest;
      break;
    case OptimizerKind::adamw8bit:
      break;
    case OptimizerKind::adamw8bit_kahan:
      o.rounding = UpdateRounding::kahan;
      break;
    case OptimizerKind::adafactor:
      o.weight_decay = 0;
      break;
    case OptimizerKind::sgd:
      o.weight_decay = 0;
      o.state_dtype = parameter;
      break;
  }
  return o;
}

DType trained_dtype(const TrainConfig& c) {
  if (c.method == Method::lora) return c.adapter.dtype;
  if (c.student) return c.model.dtype;  // the other one is the teacher's
  return c.model.transformer_dtype.value_or(c.model.dtype);
}

PathFinder::PathFinder(std::string_view config, std::vector<std::string>* notes)
    : folder_(fs::path(config).parent_path().string()), notes_(notes) {}

std::string PathFinder::find(std::string_view key, const std::string& path) const {
  if (path.empty() || folder_.empty() || fs::path(path).is_absolute() || path_exists(path)) {
    return path;
  }
  const std::string beside = (fs::path(folder_) / path).string();
  if (!path_exists(beside)) return path;
  notes_->push_back(
      fmt::format("{}: {} is not in the current folder; {} is used", key, path, beside));
  return beside;
}

}  // namespace ballast::train
