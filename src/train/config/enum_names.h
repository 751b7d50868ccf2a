#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/parse_enum.h"
#include "nn/optimizer.h"
#include "train/config/config.h"

namespace ballast::train {

// Words that configurations are written with, and what they mean.

inline constexpr std::array<EnumName<DType>, 6> kDTypeNames = {{
    {"float32", DType::f32},
    {"float16", DType::f16},
    {"bfloat16", DType::bf16},
    {"float8", DType::f8_e4m3},
    {"float8_e4m3fn", DType::f8_e4m3},
    {"float8_e5m2", DType::f8_e5m2},
}};

// The optimizer of that kind with its trainer's defaults, for parameters of that type.
OptimizerOptions optimizer_defaults(OptimizerKind kind, DType parameter);

// The type of the weights that are trained.
DType trained_dtype(const TrainConfig& c);

// Files named in a configuration: relative to the current folder, as the trainers have it; where
// that is not there, beside the configuration, with a note.
class PathFinder {
 public:
  PathFinder(std::string_view config, std::vector<std::string>* notes);
  std::string find(std::string_view key, const std::string& path) const;

 private:
  std::string folder_;
  std::vector<std::string>* notes_;
};

}  // namespace ballast::train
