#include "plan/shared_shape.h"

namespace ballast {
namespace {

// Element by element: calling a library to compare takes longer than most shapes do.
bool same(const Shape& a, const Shape& b) {
  if (a.rank() != b.rank()) return false;
  for (int i = 0; i < a.rank(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

}  // namespace

SharedShape ShapePool::of(const Shape& shape) {
  constexpr int kHashBits = 9;
  if (recent_.empty()) recent_.resize(1 << kHashBits, nullptr);
  std::uint64_t hash = static_cast<std::uint64_t>(shape.rank());
  for (const std::int64_t d : shape) {
    hash = (hash ^ static_cast<std::uint64_t>(d)) * 0x9E3779B97F4A7C15u;
  }
  const Shape*& found = recent_[hash >> (64 - kHashBits)];
  if (!found || !same(*found, shape)) found = &all_.emplace_back(shape);
  return SharedShape(found);
}

}  // namespace ballast
