#pragma once

#include "core/device.h"
#include "core/tensor.h"

namespace ballast {

// Moves bytes between the ranks of one group; sums are operations of ours (ops/collective.h), so
// that their order is ours. A transport in dist implements it.
//
// All ranks of the group call the same functions with the same sizes in the same order. A call
// returns when all bytes have come that it writes, and when no other rank needs those that it
// reads. Matrices have contiguous rows, at any distance from each other. Where another rank is
// gone, a call fails with ErrorCode::lost; nobody waits for ever.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // in the group
  virtual int size() const = 0;
  // Whether it finds other ranks' buffers by their offsets, so that all ranks need the same plan.
  virtual bool by_offset() const { return false; }

  // Row r of all [size, n] becomes `mine` [1, n] of rank r. mine may be this rank's own row of all.
  virtual void all_gather(const ConstTensorView& mine, const TensorView& all, Stream stream) = 0;
  // Row r of from [size, n] becomes row rank() of rank r's `to` [size, n]. They do not overlap.
  virtual void all_to_all(const ConstTensorView& to, const TensorView& from, Stream stream) = 0;
  // b [1, n] becomes that of rank `root`.
  virtual void broadcast(int root, const TensorView& b, Stream stream) = 0;
  // Returns when all ranks have called it.
  virtual void barrier(Stream stream) = 0;

  // This rank cannot go on. By any thread: whoever waits for this rank, here or on other ranks,
  // fails soon, as do all later calls.
  virtual void abort() noexcept = 0;
};

}  // namespace ballast
