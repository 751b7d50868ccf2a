#pragma once

#include <span>

#include "plan/program_builder.h"
#include "plan/reduction_columns.h"

namespace ballast::ops {

// Exchanges between the ranks of a group (ProgramSet::groups), on the network lane: libraries move
// bytes, and every addition is an instruction of ours in a fixed order. Buffers are contiguous and
// as large on all ranks. An exchange is cut into instructions of at most kMaxExchange that each
// rank receives, so that none waits long behind another.
inline constexpr std::int64_t kMaxExchange = 64'000'000;

// Row r of all [size, ...] becomes `mine` of rank r; mine may be this rank's own row of all.
void all_gather(ProgramBuilder& pb, int group, Buffer mine, Buffer all);
// Row r of from [size, ...] becomes this rank's row of `to` [size, ...] on rank r.
void all_to_all(ProgramBuilder& pb, int group, Buffer to, Buffer from);
// b becomes that of rank `root` of the group.
void broadcast(ProgramBuilder& pb, int group, int root, Buffer b);
// Moves nothing: all ranks have come here. What they did to `reads` is done, and nobody begins with
// `writes` before.
void barrier(ProgramBuilder& pb, int group, const BufferList& reads, const BufferList& writes);

// pieces[0] becomes the sum of all pieces, which are sums over these subtrees of columns; the other
// pieces are overwritten. In the tree's order, on the compute lane: the same bits whichever rank
// adds and however columns are dealt out. Pieces are f32 or bf16, of one shape.
void tree_sum(ProgramBuilder& pb, const ReductionColumns& shape,
              std::span<const ColumnRange> subtrees, std::span<const Buffer> pieces);

}  // namespace ballast::ops
