#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "memory/disk_file.h"
#include "plan/program_builder.h"

namespace ballast {

// Where a tensor's bytes are. file == nullptr: its size is known, nothing is read (planning).
struct StoredBytes {
  Shape shape;
  DType dtype = DType::bf16;
  Extent extent;
};

// A tensor to be brought from a file. With a scale per row `to` is quantised on the way;
// another dtype than the stored one: converted on the way (8-bit floats saturate). The rows of a
// matrix `to` may lie apart.
struct Delivery {
  std::string_view name = {};  // of the tensor, for messages; used while recording
  StoredBytes from;
  Buffer to;
  Buffer to_scale;  // [rows] f32, only when quantising
};

// The host buffers between disk and device. Tensors are cut into pieces that fit one buffer of the
// ring; small ones share it. For every filled buffer two instructions are recorded: the reads on
// the disk lane, a part each, and the copies out on the given lane. Nothing is ever staged whole.
class StagingRing {
 public:
  struct Size {
    std::uint64_t buffer;  // bytes
    int buffers;
  };
  // One whose last requests are in flight beside the first of the next, one being copied.
  static constexpr Size kLoading = {kDiskReaders * kDiskRequest, 3};
  // For steps that are as fast as the disk, of half the size: requests are in flight for up to
  // three, one is being copied, two are for when copies are late. Reads go to as few of them as
  // they can (plan/ring_allocator.h), since into more memory they are slower; still smaller ones
  // would be more instructions.
  static constexpr Size kStreaming = {kLoading.buffer / 2, 6};
  // ... and two more where copies wait for places that are still computed with (decision 46).
  static constexpr Size kStreamingOneSlot = {kStreaming.buffer, 8};

  // largest: bytes of the largest tensor that will pass; small models get a small ring, in which it
  // goes in two pieces.
  StagingRing(ProgramBuilder& pb, std::uint64_t largest, Size size = kLoading);

  void deliver(ProgramBuilder& pb, std::vector<Delivery> deliveries, Lane lane);

  // For others that pass through (nn/scratch_state.h): the buffer whose turn it is.
  Buffer next() { return ring_[next_++ % ring_.size()]; }
  std::uint64_t buffer_bytes() const { return bytes_; }  // a multiple of kDiskAlignment

 private:
  struct Piece {
    const Delivery* delivery;
    std::int64_t first, count;  // elements
    AlignedRange range;
    std::uint64_t at = 0;  // in the ring buffer
  };
  void emit(ProgramBuilder& pb, std::span<const Piece> pieces, Lane lane);

  std::vector<Buffer> ring_;
  std::uint64_t bytes_;
  std::size_t next_ = 0;
};

}  // namespace ballast
