#pragma once

#include <span>

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// One matrix laid into a wider or higher one:
//   to[i, j] = factor * from[i, j - column], the product in f32 and rounded once, and 0 where from
//   has no such element.
// from: [r, c], r <= R and column + c <= C; to: [R, C]; both f32 or bf16, any row stride,
// neighbouring elements along a row. The two must not overlap.
struct AppendAdapter {
  ConstTensorView from = {};
  TensorView to = {};
  std::int64_t column = 0;
  float factor = 1;
};

// Many at once: a GPU takes as long for one small matrix as for all of a block. Without a pool in
// the stream the calling thread does the work.
inline constexpr std::size_t kMaxAppended = 24;
void append_adapter(std::span<const AppendAdapter> all, Stream stream);

// Recorded form.
struct AppendAdapterBuffers {
  Buffer from, to;
  std::int64_t column = 0;
  float factor = 1;
};
void append_adapter(ProgramBuilder& pb, std::vector<AppendAdapterBuffers> all,
                    Lane lane = Lane::compute);

}  // namespace ballast::ops
