#include "nn/staging_ring.h"

#include <algorithm>
#include <cstring>

#include "core/convert.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "ops/copy.h"
#include "ops/quantize_rows.h"
#include "plan/bindings.h"

namespace ballast {
namespace {

constexpr std::uint64_t kRequestBytes = 2
                                        << 20;  // best of 1 to 4 MiB on NVMe with 4 to 8 in flight

std::uint64_t round_up(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

// Whether the rows of a matrix lie apart.
bool has_gaps(ProgramBuilder& pb, Buffer b) {
  const BufferSpec& s = pb.set().spec(b);
  return s.strides != row_major(s.shape);
}

struct Request {
  const DiskFile* file;
  std::uint64_t offset, bytes, at;
  std::uint64_t wanted;  // the rest is what alignment adds, and may lie behind the end of the file
};

// One piece leaving the ring buffer.
struct CopyOut {
  std::uint64_t at;  // first wanted byte in the ring buffer
  DType from;
  std::int64_t count;
  Buffer to, to_scale;
};

void read_requests(const std::vector<Request>& requests, const TensorView& ring, Stream stream) {
  stream.pool->parallel(static_cast<std::int64_t>(requests.size()), [&](std::int64_t i, int) {
    const Request& r = requests[static_cast<std::size_t>(i)];
    const std::uint64_t got = r.file->read_aligned(r.offset, {ring.data + r.at, r.bytes});
    if (got < r.wanted) {
      fail(ErrorCode::input, fmt::format("{}: ends at byte {}, a tensor at byte {}", r.file->path(),
                                         r.file->size(), r.offset + r.wanted));
    }
  });
}

void copy_out(const CopyOut& c, const TensorView& ring, const Bindings& b) {
  const TensorView to = b.out(c.to);
  const std::byte* from = ring.data + c.at;
  if (to.device != Device::cpu) {
    // The queue takes the ring as it will be when the read is done: nothing is touched from here.
    if (c.to_scale) {
      ops::quantize_rows(
          {.w = ConstTensorView(from, c.from, to.shape), .q = to, .scale = b.out(c.to_scale)},
          b.stream());
    } else {
      ops::copy({.from = ConstTensorView(from, c.from, to.shape),
                 .to = to,
                 .rounding = Rounding::saturating},
                b.stream());
    }
    return;
  }
  if (!c.to_scale) {
    const std::int64_t rows = to.contiguous() ? 1 : to.shape[0], width = c.count / rows;
    for (std::int64_t r = 0; r < rows; ++r) {
      convert(from + static_cast<std::size_t>(r * width) * size_of(c.from), c.from,
              to.data + static_cast<std::size_t>(r * to.strides[0]) * size_of(to.dtype), to.dtype,
              width, Rounding::saturating);
    }
    return;
  }
  // Old writers start tensors at any byte. The range read begins at a multiple of the element size,
  // so there is room to move such a piece down to its natural alignment.
  std::byte* aligned = ring.data + c.at / size_of(c.from) * size_of(c.from);
  if (aligned != from) {
    std::memmove(aligned, from, static_cast<std::size_t>(c.count) * size_of(c.from));
  }
  ops::quantize_rows(
      {.w = ConstTensorView(aligned, c.from, to.shape), .q = to, .scale = b.out(c.to_scale)},
      b.stream());
}

}  // namespace

StagingRing::StagingRing(ProgramBuilder& pb, std::uint64_t largest)
    : bytes_(std::min(kBufferBytes, round_up(largest, kDiskAlignment) + 2 * kDiskAlignment)) {
  for (int i = 0; i < kBuffers; ++i) {
    ring_.push_back(pb.persistent(fmt::format("staging.{}", i), {static_cast<std::int64_t>(bytes_)},
                                  DType::u8, Role::staging, Tier::host, kDiskAlignment));
  }
}

void StagingRing::deliver(ProgramBuilder& pb, std::vector<Delivery> deliveries, Lane lane) {
  std::ranges::stable_sort(deliveries, {}, [](const Delivery& d) {
    return std::pair(reinterpret_cast<std::uintptr_t>(d.from.extent.file), d.from.extent.offset);
  });
  std::vector<Piece> fill;
  std::uint64_t used = 0;
  for (const Delivery& d : deliveries) {
    const std::int64_t total = d.from.shape.elements();
    const auto size = static_cast<std::int64_t>(size_of(d.from.dtype));
    // Quantising and rows that lie apart need whole rows; everything else any whole elements.
    const bool by_row = d.to_scale || has_gaps(pb, d.to);
    const std::int64_t unit = by_row ? total / d.from.shape[0] : 1;
    for (std::int64_t first = 0; first < total;) {
      // Worst case of widening: one alignment unit at either end.
      const std::uint64_t room = bytes_ - used;
      const std::int64_t fits =
          room <= 2 * kDiskAlignment
              ? 0
              : static_cast<std::int64_t>(room - 2 * kDiskAlignment) / size / unit * unit;
      if (fits == 0) {
        check(!fill.empty(), "a row of {} does not fit a staging buffer of {} bytes", d.from.shape,
              bytes_);
        emit(pb, fill, lane);
        fill.clear();
        used = 0;
        continue;
      }
      std::int64_t count = std::min(fits, total - first);
      if (used == 0 && count < total - first) {
        // Equal pieces: a short rest would leave the disk with one request at a time.
        const std::int64_t left = total - first, pieces = (left + fits - 1) / fits;
        const std::int64_t step = unit == 1 ? static_cast<std::int64_t>(kDiskAlignment) : unit;
        count = std::min(fits, ((left + pieces - 1) / pieces + step - 1) / step * step);
      }
      const AlignedRange range =
          widen(d.from.extent.offset + static_cast<std::uint64_t>(first * size),
                static_cast<std::uint64_t>(count * size));
      fill.push_back({.delivery = &d, .first = first, .count = count, .range = range, .at = used});
      used += range.bytes;
      first += count;
    }
  }
  if (!fill.empty()) emit(pb, fill, lane);
}

void StagingRing::emit(ProgramBuilder& pb, std::span<const Piece> pieces, Lane lane) {
  const Buffer ring = next();
  std::vector<Request> requests;
  std::vector<CopyOut> outs;
  BufferList writes;
  double bytes = 0;
  for (const Piece& p : pieces) {
    const Delivery& d = *p.delivery;
    const std::uint64_t piece_bytes = static_cast<std::uint64_t>(p.count) * size_of(d.from.dtype);
    for (std::uint64_t done = 0; done < p.range.bytes; done += kRequestBytes) {
      const std::uint64_t request = std::min(kRequestBytes, p.range.bytes - done);
      requests.push_back({.file = d.from.extent.file,
                          .offset = p.range.offset + done,
                          .bytes = request,
                          .at = p.at + done,
                          .wanted = std::min(request, p.range.skip + piece_bytes - done)});
    }
    bytes += static_cast<double>(p.range.bytes);
    CopyOut out = {p.at + p.range.skip, d.from.dtype, p.count, {}, {}};
    if (d.to_scale) {
      const std::int64_t row = d.from.shape.elements() / d.from.shape[0];
      out.to =
          pb.view(d.to, static_cast<std::uint64_t>(p.first), pb.dtype(d.to), {p.count / row, row});
      out.to_scale = pb.rows(d.to_scale, p.first / row, p.count / row);
      writes.push_back(out.to_scale);
    } else if (has_gaps(pb, d.to)) {
      const std::int64_t row = d.from.shape[1];
      out.to = pb.rows(d.to, p.first / row, p.count / row);
    } else {
      const DType to = pb.dtype(d.to);
      out.to = pb.view(d.to, static_cast<std::uint64_t>(p.first) * size_of(to), to, {p.count});
    }
    writes.push_back(out.to);
    outs.push_back(out);
  }
  pb.emit("read",
          {.writes = {ring}, .lane = Lane::disk, .cost = {.work = Work::disk, .bytes = bytes}},
          [requests = std::move(requests), ring](const Bindings& b) {
            read_requests(requests, b.out(ring), b.stream());
          });
  writes.push_back(ring);  // a piece may be moved to its alignment inside it
  pb.emit("copy_out",
          {.reads = {ring},
           .writes = std::move(writes),
           .lane = lane,
           .cost = {.work = Work::transfer, .bytes = 2 * bytes}},
          [outs = std::move(outs), ring](const Bindings& b) {
            const TensorView from = b.out(ring);
            for (const CopyOut& c : outs) copy_out(c, from, b);
          });
}

}  // namespace ballast
