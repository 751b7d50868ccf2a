#pragma once

#include "core/tensor.h"
#include "ops/relative_buckets.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// bias[h, e] = table[bucket(e - zero), h]: what attention (ops/attention/attention.h) adds to
// scores by distance. For Lq queries that begin at position p, and keys from position 0, zero is Lq
// - 1 + p.
struct RelativeBias {
  ConstTensorView table;  // [buckets, H] f32, contiguous
  TensorView bias;        // [H, E] f32, contiguous
  RelativeBuckets buckets;
  std::int64_t zero = 0;
};
void relative_bias(const RelativeBias& a, Stream stream);

// dtable[n, h] += sum of dbias[h, e] over the entries of bucket n, in order.
struct RelativeBiasBackward {
  ConstTensorView dbias;  // [H, E] f32, contiguous
  TensorView dtable;      // [buckets, H] f32, contiguous
  RelativeBuckets buckets;
  std::int64_t zero = 0;
};
void relative_bias_backward(const RelativeBiasBackward& a, Stream stream);

// Recorded forms. The bias of `queries` queries and `keys` keys: [H, queries + keys - 1] f32. With
// grows the queries begin at the number of the run's step (StepValues).
struct RelativeBiasOptions {
  RelativeBuckets buckets;
  std::int64_t queries = 0, keys = 0;
  bool grows = false;
};
Buffer relative_bias(ProgramBuilder& pb, Buffer table, const RelativeBiasOptions& options);
void relative_bias_backward(ProgramBuilder& pb, Buffer dbias, Buffer dtable,
                            const RelativeBiasOptions& options);

}  // namespace ballast::ops
