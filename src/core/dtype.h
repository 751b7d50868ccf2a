#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "core/dtype_kind.h"
#include "core/to_size.h"

namespace ballast {

struct DTypeInfo {
  DType dtype;
  std::string_view name;              // ours, in messages and options
  std::string_view safetensors_name;  // in files
  std::size_t size;                   // bytes of one element
  bool floating;
};

inline constexpr std::array<DTypeInfo, 15> kDTypes = {{
    {DType::f64, "f64", "F64", 8, true},
    {DType::f32, "f32", "F32", 4, true},
    {DType::f16, "f16", "F16", 2, true},
    {DType::bf16, "bf16", "BF16", 2, true},
    {DType::f8_e4m3, "f8_e4m3", "F8_E4M3", 1, true},
    {DType::f8_e5m2, "f8_e5m2", "F8_E5M2", 1, true},
    {DType::i8, "i8", "I8", 1, false},
    {DType::u8, "u8", "U8", 1, false},
    {DType::i16, "i16", "I16", 2, false},
    {DType::u16, "u16", "U16", 2, false},
    {DType::i32, "i32", "I32", 4, false},
    {DType::u32, "u32", "U32", 4, false},
    {DType::i64, "i64", "I64", 8, false},
    {DType::u64, "u64", "U64", 8, false},
    {DType::boolean, "bool", "BOOL", 1, false},
}};

constexpr const DTypeInfo& info(DType t) { return kDTypes[to_size(t)]; }
constexpr std::size_t size_of(DType t) { return info(t).size; }
constexpr std::string_view name_of(DType t) { return info(t).name; }

constexpr std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const DTypeInfo& i : kDTypes) {
    if (i.safetensors_name == name) return i.dtype;
  }
  return std::nullopt;
}

}  // namespace ballast

template <>
struct fmt::formatter<ballast::DType> : fmt::formatter<std::string_view> {
  auto format(ballast::DType t, fmt::format_context& ctx) const {
    return fmt::formatter<std::string_view>::format(ballast::name_of(t), ctx);
  }
};
