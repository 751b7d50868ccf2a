#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/dtype.h"

namespace ballast {

// The first of `count` elements that is NaN or infinite; nullopt also for types that are no f64,
// f32, bf16 or f16. `data` need not be aligned. Nearly as fast as memory where there is none.
std::optional<std::int64_t> first_non_finite(const std::byte* data, DType dtype,
                                             std::int64_t count);

}  // namespace ballast
