#include "ops/collective.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/to_size.h"
#include "memory/communicator.h"
#include "ops/add.h"
#include "plan/bindings.h"

namespace ballast::ops {
namespace {

const RankGroup& group_of(ProgramBuilder& pb, int group) {
  const auto& all = pb.set().groups;
  check(group >= 0 && to_size(group) < all.size(), "group {} of {}", group, all.size());
  return all[to_size(group)];
}

// As a matrix of `rows`.
Buffer rank_rows(ProgramBuilder& pb, Buffer b, int rows) {
  const std::int64_t elements = pb.shape(b).elements();
  check(elements % rows == 0, "{} {} has no {} rows", pb.set().name(b), pb.shape(b), rows);
  return pb.reshape(b, {rows, elements / rows});
}

// `received`: bytes that come from other ranks; as many go to them.
Access access_of(int group, BufferList reads, BufferList writes, double received) {
  return {.reads = std::move(reads),
          .writes = std::move(writes),
          .lane = Lane::network,
          .cost = {.work = Work::network, .bytes = received, .group = group}};
}

// emit(what is read, what is written, bytes that come) for some columns of both after the other.
// Of each column `rows` elements come from other ranks.
template <class Emit>
void each_part(ProgramBuilder& pb, Buffer reads, Buffer writes, int rows, const Emit& emit) {
  const std::int64_t columns = pb.shape(reads)[1];
  check(pb.shape(writes)[1] == columns && pb.dtype(reads) == pb.dtype(writes),
        "rows of {} {} for rows of {} {}", columns, pb.dtype(reads), pb.shape(writes)[1],
        pb.dtype(writes));
  const auto size = static_cast<std::int64_t>(size_of(pb.dtype(reads)));
  const std::int64_t most =
      std::max<std::int64_t>(1, kMaxExchange / std::max<std::int64_t>(1, rows * size));
  for (std::int64_t first = 0; first < columns; first += most) {
    const std::int64_t count = std::min(most, columns - first);
    emit(pb.columns(reads, first, count), pb.columns(writes, first, count),
         static_cast<double>(rows * count * size));
  }
}

}  // namespace

void all_gather(ProgramBuilder& pb, int group, Buffer mine, Buffer all) {
  const int size = group_of(pb, group).size;
  each_part(pb, rank_rows(pb, mine, 1), rank_rows(pb, all, size), size - 1,
            [&](Buffer from, Buffer to, double bytes) {
              pb.emit("all_gather", access_of(group, {from}, {to}, bytes), [=](const Bindings& b) {
                b.group(group).all_gather(b.in(from), b.out(to), b.stream());
              });
            });
}

void all_to_all(ProgramBuilder& pb, int group, Buffer to, Buffer from) {
  const int size = group_of(pb, group).size;
  each_part(pb, rank_rows(pb, to, size), rank_rows(pb, from, size), size - 1,
            [&](Buffer sent, Buffer came, double bytes) {
              pb.emit("all_to_all", access_of(group, {sent}, {came}, bytes),
                      [=](const Bindings& b) {
                        b.group(group).all_to_all(b.in(sent), b.out(came), b.stream());
                      });
            });
}

void broadcast(ProgramBuilder& pb, int group, int root, Buffer b) {
  const int size = group_of(pb, group).size;
  check(root >= 0 && root < size, "broadcast: rank {} of {}", root, size);
  const Buffer row = rank_rows(pb, b, 1);
  // Only the root reads it, but all ranks record the same; an update waits for what wrote it.
  each_part(pb, row, row, 1, [&](Buffer part, Buffer, double bytes) {
    pb.emit("broadcast", access_of(group, {}, {part}, bytes), [=](const Bindings& at) {
      at.group(group).broadcast(root, at.out(part), at.stream());
    });
  });
}

void barrier(ProgramBuilder& pb, int group, const BufferList& reads, const BufferList& writes) {
  group_of(pb, group);
  pb.emit("barrier", access_of(group, reads, writes, 0),
          [=](const Bindings& b) { b.group(group).barrier(b.stream()); });
}

void tree_sum(ProgramBuilder& pb, const ReductionColumns& shape,
              std::span<const ColumnRange> subtrees, std::span<const Buffer> pieces) {
  check(pieces.size() == subtrees.size(), "tree_sum: {} pieces for {} subtrees", pieces.size(),
        subtrees.size());
  for (const ReductionColumns::Join& join : shape.joins(subtrees)) {
    add_into(pb, pieces[join.from], pieces[join.into]);
  }
}

}  // namespace ballast::ops
