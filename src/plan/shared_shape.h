#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/shape.h"

namespace ballast {

// A shape that many buffers have: a program has far more buffers than shapes, and one that only
// points to its shape is a third as large. The pool that gave it out keeps it.
class SharedShape {
 public:
  SharedShape() = default;
  explicit SharedShape(const Shape* shape) : shape_(shape) {}

  operator const Shape&() const { return *shape_; }  // to be used as one
  int rank() const { return shape_->rank(); }
  const std::int64_t* begin() const { return shape_->begin(); }
  const std::int64_t* end() const { return shape_->end(); }
  std::int64_t operator[](int i) const { return (*shape_)[i]; }
  std::int64_t back() const { return shape_->back(); }
  std::int64_t elements() const { return shape_->elements(); }
  std::int64_t rows() const { return shape_->rows(); }

  friend bool operator==(SharedShape a, SharedShape b) {
    return a.shape_ == b.shape_ || *a.shape_ == *b.shape_;
  }

 private:
  static constexpr Shape kNone = {};
  const Shape* shape_ = &kNone;
};

// Shapes given out stay where they are when the pool is moved.
class ShapePool {
 public:
  ShapePool() = default;
  ShapePool(ShapePool&&) = default;
  ShapePool& operator=(ShapePool&&) = default;

  SharedShape of(const Shape& shape);
  std::uint64_t bytes() const { return all_.size() * sizeof(Shape) + recent_.size() * 8; }

 private:
  std::deque<Shape> all_;             // mostly each once
  std::vector<const Shape*> recent_;  // by hash: where an equal one is found again
};

}  // namespace ballast

template <>
struct fmt::formatter<ballast::SharedShape> : fmt::formatter<ballast::Shape> {
  auto format(const ballast::SharedShape& s, fmt::format_context& ctx) const {
    return fmt::formatter<ballast::Shape>::format(s, ctx);
  }
};
