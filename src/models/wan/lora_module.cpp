#include "models/wan/lora_module.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/convert.h"
#include "core/error.h"
#include "core/to_size.h"

namespace ballast::wan {

void LoraNumbers::read(std::int64_t first, std::int64_t count, std::byte* to) const {
  check(first >= 0 && count >= 0 && first + count <= elements(), "elements {}+{} of {} {}", first,
        count, printable(key), shape);
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const auto bytes = to_size(count * size);
  if (memory) {
    std::memcpy(to, memory + first * size, bytes);
  } else if (fetch) {
    fetch(static_cast<std::uint64_t>(first * size), {to, bytes});
  } else if (extent.file) {
    extent.file->read(extent.offset + static_cast<std::uint64_t>(first * size), {to, bytes});
  } else {
    std::memset(to, 0, bytes);
  }
}

void LoraNumbers::read(std::int64_t first, std::span<float> to) const {
  if (dtype == DType::f32) {
    return read(first, std::ssize(to), reinterpret_cast<std::byte*>(to.data()));
  }
  std::array<std::byte, 32 << 10> stored;
  const std::size_t most = stored.size() / size_of(dtype);
  while (!to.empty()) {
    const std::size_t n = std::min(most, to.size());
    read(first, static_cast<std::int64_t>(n), stored.data());
    convert(stored.data(), dtype, to.data(), DType::f32, static_cast<std::int64_t>(n));
    first += static_cast<std::int64_t>(n);
    to = to.subspan(n);
  }
}

FoldedScale fold_scale(double scale) {
  if (scale == 0) return {0, 1};
  double down = std::abs(scale), up = 1;
  while (2 * down < up) down *= 2, up /= 2;
  return {static_cast<float>(std::copysign(down, scale)), static_cast<float>(up)};
}

void store_numbers(std::span<const float> from, DType dtype, std::byte* to, std::string_view key) {
  const float most = largest(dtype);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (!(std::abs(from[i]) > most) || !std::isfinite(from[i])) continue;
    if (std::isfinite(to_f32(from_f32(from[i], dtype), dtype))) continue;
    fail(ErrorCode::input,
         fmt::format("{}: element {} is {}, beyond the largest {} number, {}", printable(key), i,
                     from[i], dtype, most),
         {{"--dtype bf16", "has the range of f32"}});
  }
  convert(from.data(), DType::f32, to, dtype, std::ssize(from));
}

}  // namespace ballast::wan
