#pragma once

#include "ops/kernels/cuda_view.h"

namespace ballast::ops::cuda {

// The operands of ops/embedding.h.
struct Embedding {
  View table, ids, y;
};
void embedding(const Embedding& a, void* stream);

struct EmbeddingBackward {
  View ids, dy, dtable;
};
void embedding_backward(const EmbeddingBackward& a, void* stream);

}  // namespace ballast::ops::cuda
