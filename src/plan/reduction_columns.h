#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ballast {

struct ColumnRange {
  std::int64_t first = 0, count = 0;

  std::int64_t end() const { return first + count; }
  friend bool operator==(const ColumnRange&, const ColumnRange&) = default;
};

// The shape of sums over the samples of a step. It decides their bits; the number of ranks does
// not.
//
// Sample i of M belongs to column floor(i columns / M). Inside a column samples add up one after
// the other. The columns of a group add up by the tree
//   T(lo, n) = n == 1 ? column lo : T(lo, p) + T(lo + p, n - p),  p the largest power of two below
//   n,
// and the sums of groups by the same tree. Columns without a sample are left out, not added as
// zeros. A subtree's sum is named by its range of columns. A rank adds up the subtrees that it
// holds whole and sends those, so every number of ranks up to `columns` gives the same bits.
struct ReductionColumns {
  std::int64_t columns = 1;
  std::int64_t group = 1;  // columns in a group; the last one may have fewer

  std::int64_t column_of(std::int64_t sample, std::int64_t samples) const {
    return sample * columns / samples;
  }
  // The samples of these columns, of `samples` in the step.
  ColumnRange samples_of(ColumnRange of, std::int64_t samples) const;
  // The columns of a rank; their numbers differ by one at most.
  ColumnRange of_rank(std::int64_t rank, std::int64_t ranks) const;

  // The largest subtrees inside `of` that have a sample, in order.
  std::vector<ColumnRange> subtrees(ColumnRange of, std::int64_t samples) const;

  // Sums of these pieces, in place. Each is a subtree, or what is left of one without its empty
  // columns; they are in order and do not overlap.
  struct Join {
    std::size_t into, from;  // piece `into` += piece `from`
    std::size_t after;       // can be done as soon as this piece is there, and those before it
    friend bool operator==(const Join&, const Join&) = default;
  };
  // In order of `after`, so that pieces made one by one need room for 1 + ceil(log2) of them. Piece
  // 0 becomes the sum of all.
  std::vector<Join> joins(std::span<const ColumnRange> pieces) const;
};

}  // namespace ballast
