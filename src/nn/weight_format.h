#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace ballast {

// In which form matrices stand on the device. `stored` takes them as they are in the file; the
// others are made piece by piece on the way; those of rows with a scale for each row, the other
// 8-bit ones without. Vectors (biases, gains, modulation) are f32, bf16 or f16.
enum class WeightFormat : std::uint8_t {
  stored,
  f32,
  bf16,
  f16,
  f8_e4m3,
  f8_e5m2,
  f8_e4m3_rows,
  int8_rows
};
std::string_view name_of(WeightFormat f);
constexpr bool is_fp8(WeightFormat f) {
  return f == WeightFormat::f8_e4m3 || f == WeightFormat::f8_e5m2 ||
         f == WeightFormat::f8_e4m3_rows;
}
std::optional<WeightFormat> find_weight_format(std::string_view name);
// As --weights takes them.
std::vector<std::string_view> weight_format_names();

}  // namespace ballast
