#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/to_size.h"
#include "plan/reduction_columns.h"

namespace ballast::ref {

// T(lo, n) = n == 1 ? leaf(lo) : T(lo, p) + T(lo + p, n - p), p the largest power of two below n;
// leaves that are not there are left out.
template <class T, class Leaf>
std::optional<T> tree(std::int64_t lo, std::int64_t n, const Leaf& leaf) {
  if (n == 1) return leaf(lo);
  std::int64_t p = 1;
  while (2 * p < n) p *= 2;
  const std::optional<T> left = tree<T>(lo, p, leaf), right = tree<T>(lo + p, n - p, leaf);
  if (!left || !right) return left ? left : right;
  return *left + *right;
}

// The columns of each group, then the groups.
template <class T>
std::optional<T> tree_sum(const ReductionColumns& shape,
                          const std::vector<std::optional<T>>& columns) {
  const std::int64_t groups = (shape.columns + shape.group - 1) / shape.group;
  return tree<T>(0, groups, [&](std::int64_t g) {
    const std::int64_t first = g * shape.group;
    return tree<T>(first, std::min(shape.group, shape.columns - first),
                   [&](std::int64_t c) { return columns[to_size(c)]; });
  });
}

}  // namespace ballast::ref
