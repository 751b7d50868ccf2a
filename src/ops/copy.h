#pragma once

#include "core/convert.h"
#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// to = from, element by element, converted where the dtypes differ (core/convert.h: one rounding to
// nearest). Any strides on both sides, up to eight dimensions, and any address; a stride of 0 in
// `from` repeats an element. The two must not overlap. Without a pool in the stream the calling
// thread does the work. The GPU does it where one side is there; the other may be host memory.
struct Copy {
  ConstTensorView from;
  TensorView to;  // same shape
  Rounding rounding = Rounding::nearest;
};
void copy(const Copy& a, Stream stream);
// Whether a copy of packed elements to `to` moves bytes alone, in one piece or in long rows: a GPU
// leaves those between host and device to its copy engine. Anything else takes a kernel, which
// reaches pinned memory of the host only.
bool moves_bytes(DType from, const BufferSpec& to);

// Recorded forms. A copy between tiers counts as a transfer, any other as memory traffic.
void copy(ProgramBuilder& pb, Buffer from, Buffer to, Lane lane = Lane::compute);
// x in another dtype, in a temporary of its own; x itself when it has that dtype already.
Buffer cast(ProgramBuilder& pb, Buffer x, DType dtype);

}  // namespace ballast::ops
