#include "plan/reduction_columns.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace ballast {
namespace {

// A node of the tree: columns of one group, or several whole groups.
struct Node {
  ColumnRange of;

  // How many columns go to the left; 0: it is one column.
  std::int64_t left(const ReductionColumns& shape) const {
    if (of.count <= 1) return 0;
    const std::int64_t groups = (of.count + shape.group - 1) / shape.group;
    const std::int64_t parts = groups > 1 ? groups : of.count;
    const auto below = static_cast<std::uint64_t>(parts - 1);
    return static_cast<std::int64_t>(std::bit_floor(below)) * (groups > 1 ? shape.group : 1);
  }
};

bool within(ColumnRange inner, ColumnRange outer) {
  return inner.first >= outer.first && inner.end() <= outer.end();
}

class Subtrees {
 public:
  Subtrees(const ReductionColumns& shape, ColumnRange of, std::int64_t samples)
      : shape_(shape), of_(of), samples_(samples) {
    visit({{0, shape.columns}});
  }
  std::vector<ColumnRange> found;

 private:
  void visit(Node node) {
    const ColumnRange here = node.of;
    if (here.end() <= of_.first || of_.end() <= here.first) return;
    if (shape_.samples_of(here, samples_).count == 0) return;
    if (within(here, of_)) {
      found.push_back(here);
      return;
    }
    const std::int64_t left = node.left(shape_);
    visit({{here.first, left}});
    visit({{here.first + left, here.count - left}});
  }

  const ReductionColumns& shape_;
  ColumnRange of_;
  std::int64_t samples_;
};

class JoinOrder {
 public:
  JoinOrder(const ReductionColumns& shape, std::span<const ColumnRange> pieces)
      : shape_(shape), pieces_(pieces) {
    if (!pieces.empty()) visit({{0, shape.columns}}, 0, pieces.size());
  }
  std::vector<ReductionColumns::Join> joins;

 private:
  // Of pieces [begin, end), all of this node; the sum is where the first of them is.
  void visit(Node node, std::size_t begin, std::size_t end) {
    if (end - begin <= 1) return;
    const std::int64_t left = node.left(shape_);
    const ColumnRange before = {node.of.first, left};
    const ColumnRange behind = {before.end(), node.of.count - left};
    std::size_t cut = begin;
    while (cut < end && within(pieces_[cut], before)) ++cut;
    for (std::size_t i = cut; i < end; ++i) {
      check(within(pieces_[i], behind), "columns {}+{} are no subtree of {} in groups of {}",
            pieces_[i].first, pieces_[i].count, shape_.columns, shape_.group);
    }
    visit({before}, begin, cut);
    visit({behind}, cut, end);
    if (begin < cut && cut < end) joins.push_back({.into = begin, .from = cut, .after = end - 1});
  }

  const ReductionColumns& shape_;
  std::span<const ColumnRange> pieces_;
};

void check_shape(const ReductionColumns& shape) {
  check(shape.columns > 0 && shape.group > 0, "{} columns in groups of {}", shape.columns,
        shape.group);
}

}  // namespace

ColumnRange ReductionColumns::samples_of(ColumnRange of, std::int64_t samples) const {
  // The first sample of column c is the smallest i with i columns >= c samples.
  const auto first = [&](std::int64_t c) { return (c * samples + columns - 1) / columns; };
  return {first(of.first), first(of.end()) - first(of.first)};
}

ColumnRange ReductionColumns::of_rank(std::int64_t rank, std::int64_t ranks) const {
  check(rank >= 0 && rank < ranks && ranks <= columns, "rank {} of {} for {} columns", rank, ranks,
        columns);
  const std::int64_t first = rank * columns / ranks;
  return {first, (rank + 1) * columns / ranks - first};
}

std::vector<ColumnRange> ReductionColumns::subtrees(ColumnRange of, std::int64_t samples) const {
  check_shape(*this);
  return Subtrees(*this, of, samples).found;
}

std::vector<ReductionColumns::Join> ReductionColumns::joins(
    std::span<const ColumnRange> pieces) const {
  check_shape(*this);
  return JoinOrder(*this, pieces).joins;
}

}  // namespace ballast
