#include "nn/scratch_state.h"

#include <algorithm>

#include "core/error.h"
#include "memory/scratch_file.h"
#include "ops/copy.h"
#include "plan/bindings.h"

namespace ballast {
namespace {

std::uint64_t whole_blocks(std::uint64_t bytes) {
  return (bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
}

Buffer bytes_of(ProgramBuilder& pb, Buffer b, std::uint64_t first, std::uint64_t count) {
  return pb.view(b, first, DType::u8, {static_cast<std::int64_t>(count)});
}

// f(stored blocks, the ring's part for them, the wanted bytes in it, those of the other buffer)
template <class F>
void each_piece(ProgramBuilder& pb, StagingRing& ring, Buffer stored, Buffer other, F&& f) {
  const BufferSpec& s = pb.set().spec(stored);
  const std::uint64_t total = s.bytes;
  check(s.tier == Tier::disk && pb.tier(other) == Tier::device, "{} {} is no state on disk",
        pb.set().name(stored), s.shape);
  check(total == pb.set().spec(other).bytes, "{} bytes of {} for {} of the buffer", total,
        pb.set().name(stored), pb.set().spec(other).bytes);
  check(s.offset % kDiskAlignment == 0, "{} is cut at byte {}, not at a multiple of {}",
        pb.set().name(stored), s.offset, kDiskAlignment);
  for (std::uint64_t done = 0; done < total;) {
    const Buffer buffer = ring.next();
    const std::uint64_t count = std::min(ring.buffer_bytes(), total - done);
    const std::uint64_t blocks = whole_blocks(count);
    f(bytes_of(pb, stored, done, blocks), bytes_of(pb, buffer, 0, blocks),
      bytes_of(pb, buffer, 0, count), bytes_of(pb, other, done, count));
    done += count;
  }
}

std::uint32_t requests_of(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes + kDiskRequest - 1) / kDiskRequest);
}

// f(first byte, bytes) of the request that is this part of an instruction.
template <class F>
void one_request(std::uint64_t bytes, std::uint32_t part, F&& f) {
  const std::uint64_t first = part * kDiskRequest;
  f(first, std::min(kDiskRequest, bytes - first));
}

// Between blocks on disk and their room in the ring, a part for each request.
Access disk_access(ProgramBuilder& pb, Work work, Buffer stored, Buffer from, Buffer to) {
  const std::uint64_t bytes = pb.set().spec(stored).bytes;
  return {.reads = {from},
          .writes = {to},
          .lane = Lane::disk,
          .cost = {.work = work, .bytes = static_cast<double>(bytes)},
          .splits = requests_of(bytes)};
}

}  // namespace

Buffer persistent_state(ProgramBuilder& pb, std::string_view name, const Shape& shape, DType dtype,
                        Tier tier) {
  if (tier != Tier::disk) return pb.persistent(name, shape, dtype, Role::optimizer, tier);
  const std::uint64_t bytes = static_cast<std::uint64_t>(shape.elements()) * size_of(dtype);
  const Buffer blocks = pb.persistent(name, {static_cast<std::int64_t>(whole_blocks(bytes))},
                                      DType::u8, Role::optimizer, Tier::disk, kDiskAlignment);
  return pb.view(blocks, 0, dtype, shape);
}

void read_scratch(ProgramBuilder& pb, StagingRing& ring, Buffer stored, Buffer to) {
  each_piece(pb, ring, stored, to, [&](Buffer blocks, Buffer room, Buffer wanted, Buffer part) {
    pb.emit("read_state", disk_access(pb, Work::disk, blocks, blocks, room),
            [=](const Bindings& b) {
              const StoredRange from = b.stored_in(blocks);
              const TensorView into = b.out(room);
              one_request(from.bytes, b.part(), [&](std::uint64_t first, std::uint64_t count) {
                from.file->read_aligned(from.offset + first, {into.data + first, count});
              });
            });
    ops::copy(pb, wanted, part, Lane::upload);
  });
}

void write_scratch(ProgramBuilder& pb, StagingRing& ring, Buffer from, Buffer stored) {
  each_piece(pb, ring, stored, from, [&](Buffer blocks, Buffer room, Buffer wanted, Buffer part) {
    ops::copy(pb, part, wanted, Lane::download);
    pb.emit("write_state", disk_access(pb, Work::disk_write, blocks, room, blocks),
            [=](const Bindings& b) {
              const StoredRange to = b.stored_out(blocks);
              const ConstTensorView out = b.in(room);
              one_request(to.bytes, b.part(), [&](std::uint64_t first, std::uint64_t count) {
                to.file->write_aligned(to.offset + first, {out.data + first, count});
              });
            });
  });
}

void zero_scratch(ProgramBuilder& pb, Buffer stored) {
  const Buffer blocks = bytes_of(pb, stored, 0, whole_blocks(pb.set().spec(stored).bytes));
  pb.emit("zero_state",
          {.writes = {blocks}, .lane = Lane::disk, .cost = {.work = Work::disk_write, .bytes = 0}},
          [=](const Bindings& b) {
            const StoredRange range = b.stored_out(blocks);
            range.file->zero_aligned(range.offset, range.bytes);
          });
}

}  // namespace ballast
