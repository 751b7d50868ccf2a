#include "nn/weight_format.h"

#include <array>

#include "core/parse_enum.h"

namespace ballast {
namespace {

// The only list of their names.
constexpr std::array<EnumName<WeightFormat>, 8> kFormatNames = {{
    {"stored", WeightFormat::stored},
    {"f32", WeightFormat::f32},
    {"bf16", WeightFormat::bf16},
    {"f16", WeightFormat::f16},
    {"fp8", WeightFormat::f8_e4m3},
    {"fp8_e5m2", WeightFormat::f8_e5m2},
    {"fp8_rows", WeightFormat::f8_e4m3_rows},
    {"int8", WeightFormat::int8_rows},
}};

}  // namespace

std::string_view name_of(WeightFormat f) { return enum_name(kFormatNames, f); }

std::optional<WeightFormat> find_weight_format(std::string_view name) {
  return parse_enum(kFormatNames, name);
}

std::vector<std::string_view> weight_format_names() {
  std::vector<std::string_view> names;
  for (const auto& n : kFormatNames) names.push_back(n.name);
  return names;
}

}  // namespace ballast
