#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// y[r] = table[ids[r]]. Every id is a row of the table: checked on the CPU, the caller's promise on
// the GPU.
struct Embedding {
  ConstTensorView table;  // [V, C] f32, bf16 or f16, inner stride 1
  ConstTensorView ids;    // [R] i32, contiguous
  TensorView y;           // [R, C] f32 or bf16, inner stride 1
};
void embedding(const Embedding& a, Stream stream);

// dtable[ids[r]] += dy[r], the rows in order.
struct EmbeddingBackward {
  ConstTensorView ids;  // [R] i32
  ConstTensorView dy;   // [R, C] f32 or bf16
  TensorView dtable;    // [V, C] f32
};
void embedding_backward(const EmbeddingBackward& a, Stream stream);

// Recorded forms.
void embedding_into(ProgramBuilder& pb, Buffer table, Buffer ids, Buffer y);
void embedding_backward(ProgramBuilder& pb, Buffer ids, Buffer dy, Buffer dtable);

}  // namespace ballast::ops
