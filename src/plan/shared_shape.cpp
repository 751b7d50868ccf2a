#include "plan/shared_shape.h"

namespace ballast {

SharedShape ShapePool::of(const Shape& shape) {
  constexpr int kHashBits = 9;
  if (recent_.empty()) recent_.resize(1 << kHashBits, nullptr);
  std::uint64_t hash = static_cast<std::uint64_t>(shape.rank());
  for (const std::int64_t d : shape) {
    hash = (hash ^ static_cast<std::uint64_t>(d)) * 0x9E3779B97F4A7C15u;
  }
  const Shape*& found = recent_[hash >> (64 - kHashBits)];
  if (!found || !(*found == shape)) found = &all_.emplace_back(shape);
  return SharedShape(found);
}

}  // namespace ballast
