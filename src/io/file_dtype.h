#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/dtype.h"
#include "core/to_size.h"

namespace ballast {

// Every element type a safetensors header may name, in the format's own order, by which writers
// sort tensors. Those without a DType can be listed but not used as weights.
enum class FileDType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

struct FileDTypeInfo {
  FileDType dtype;
  std::string_view name;
  unsigned bits;  // of one element
};

inline constexpr std::array<FileDTypeInfo, 22> kFileDTypes = {{
    {FileDType::boolean, "BOOL", 8},
    {FileDType::f4, "F4", 4},
    {FileDType::f6_e2m3, "F6_E2M3", 6},
    {FileDType::f6_e3m2, "F6_E3M2", 6},
    {FileDType::u8, "U8", 8},
    {FileDType::i8, "I8", 8},
    {FileDType::f8_e5m2, "F8_E5M2", 8},
    {FileDType::f8_e4m3, "F8_E4M3", 8},
    {FileDType::f8_e8m0, "F8_E8M0", 8},
    {FileDType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {FileDType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    {FileDType::i16, "I16", 16},
    {FileDType::u16, "U16", 16},
    {FileDType::f16, "F16", 16},
    {FileDType::bf16, "BF16", 16},
    {FileDType::i32, "I32", 32},
    {FileDType::u32, "U32", 32},
    {FileDType::f32, "F32", 32},
    {FileDType::c64, "C64", 64},
    {FileDType::f64, "F64", 64},
    {FileDType::i64, "I64", 64},
    {FileDType::u64, "U64", 64},
}};

constexpr const FileDTypeInfo& info(FileDType t) { return kFileDTypes[to_size(t)]; }
constexpr std::string_view name_of(FileDType t) { return info(t).name; }

constexpr std::optional<FileDType> file_dtype_from_name(std::string_view name) {
  for (const FileDTypeInfo& i : kFileDTypes) {
    if (i.name == name) return i.dtype;
  }
  return std::nullopt;
}

constexpr FileDType file_dtype(DType t) { return *file_dtype_from_name(info(t).safetensors_name); }

// The type Ballast computes with; nullopt for those it only recognises.
constexpr std::optional<DType> memory_dtype(FileDType t) {
  return dtype_from_safetensors(name_of(t));
}

}  // namespace ballast

template <>
struct fmt::formatter<ballast::FileDType> : fmt::formatter<std::string_view> {
  auto format(ballast::FileDType t, fmt::format_context& ctx) const {
    return fmt::formatter<std::string_view>::format(ballast::name_of(t), ctx);
  }
};
