#include "nn/staging_ring.h"

#include <algorithm>
#include <cstring>

#include "core/bytes.h"
#include "core/convert.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/copy.h"
#include "ops/linear/quantize_rows.h"
#include "plan/bindings.h"
#include "plan/checked_reads.h"

namespace ballast {
namespace {

// Whether the rows of a matrix lie apart.
bool has_gaps(ProgramBuilder& pb, Buffer b) {
  const BufferSpec& s = pb.set().spec(b);
  return s.strides != row_major(s.shape);
}

// Bytes of a tensor that are still to come, in elements that stay together.
struct Rest {
  std::uint64_t offset, bytes;  // in the file
  std::uint64_t unit;           // bytes
};

// How many of them a buffer with so much room takes, with what alignment adds at either end; where
// that is not all, up to a multiple of a request.
std::uint64_t next_bytes(const Rest& rest, std::uint64_t room) {
  const std::uint64_t limit = rest.offset / kDiskAlignment * kDiskAlignment + room;
  if (rest.offset + rest.bytes <= limit) return rest.bytes;
  const auto up_to = [&](std::uint64_t end) {
    return end <= rest.offset ? 0 : (end - rest.offset) / rest.unit * rest.unit;
  };
  const std::uint64_t whole = up_to(limit / kDiskRequest * kDiskRequest);
  return whole > 0 ? whole : up_to(limit);
}

// Where in a range the request ends that begins at `begin`; short ones join their neighbours.
std::uint64_t request_end(const AlignedRange& range, std::uint64_t begin) {
  const std::uint64_t at = range.offset + begin;
  std::uint64_t end = (at / kDiskRequest + 1) * kDiskRequest;
  if (end - at < kDiskRequest / 2) end += kDiskRequest;
  end -= range.offset;
  return end + kDiskRequest / 2 > range.bytes ? range.bytes : end;
}

struct Request {
  const DiskFile* file;
  std::uint64_t offset, bytes, at;
  std::uint64_t wanted;  // the rest is what alignment adds, and may lie behind the end of the file
  // Its whole elements, from byte `values` on; nullptr: planning, or it has none.
  CheckedReads::Read* check;
  std::uint32_t values, value_bytes;
};

// One piece leaving the ring buffer.
struct CopyOut {
  std::uint64_t at;  // first wanted byte in the ring buffer
  DType from;
  std::int64_t count;
  Buffer to, to_scale;
};

// The elements of a piece that lie whole inside a request: [first, second) counted from the
// request's beginning. A tensor may begin at any byte, then some lie in two requests.
std::pair<std::uint64_t, std::uint64_t> whole_elements(std::uint64_t request, std::uint64_t wanted,
                                                       std::uint64_t piece, std::uint64_t size) {
  const std::uint64_t begin = piece >= request ? piece : piece + round_up(request - piece, size);
  const std::uint64_t end = request + wanted;
  if (begin >= end) return {0, 0};
  return {begin - request, begin - request + (end - begin) / size * size};
}

void read_request(const Request& r, const TensorView& ring, CheckedReads* checks,
                  VerifyWeights verify) {
  const std::uint64_t got = r.file->read_aligned(r.offset, {ring.data + r.at, r.bytes});
  if (got < r.wanted) {
    fail(ErrorCode::input, "{}: ends at byte {}, a tensor at byte {}", r.file->path(),
         r.file->size(), r.offset + r.wanted);
  }
  if (r.check == nullptr) return;
  checks->check(*r.check, *r.file, r.offset + r.values,
                {ring.data + r.at + r.values, r.value_bytes}, verify);
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
      convert(from + to_size(r * width) * size_of(c.from), c.from,
              to.data + to_size(r * to.strides[0]) * size_of(to.dtype), to.dtype, width,
              Rounding::saturating);
    }
    return;
  }
  // Old writers start tensors at any byte. The range read begins at a multiple of the element size,
  // so there is room to move such a piece down to its natural alignment.
  std::byte* aligned = ring.data + c.at / size_of(c.from) * size_of(c.from);
  if (aligned != from) {
    std::memmove(aligned, from, to_size(c.count) * size_of(c.from));
  }
  ops::quantize_rows(
      {.w = ConstTensorView(aligned, c.from, to.shape), .q = to, .scale = b.out(c.to_scale)},
      b.stream());
}

}  // namespace

StagingRing::StagingRing(ProgramBuilder& pb, std::uint64_t largest, Size size)
    : bytes_(
          std::min(size.buffer, round_up((largest + 1) / 2, kDiskAlignment) + 2 * kDiskAlignment)) {
  for (int i = 0; i < size.buffers; ++i) {
    ring_.push_back(pb.persistent(fmt::format("staging.{}", i), {static_cast<std::int64_t>(bytes_)},
                                  DType::u8, Role::staging, Tier::host, kDiskAlignment));
  }
  pb.add_ring(ring_);
}

void StagingRing::deliver(ProgramBuilder& pb, std::vector<Delivery> deliveries, Lane lane) {
  std::ranges::stable_sort(deliveries, {}, [](const Delivery& d) {
    return std::pair(reinterpret_cast<std::uintptr_t>(d.from.extent.file), d.from.extent.offset);
  });
  std::vector<Piece> fill;
  std::uint64_t used = 0;
  const auto read_out = [&] {
    emit(pb, fill, lane);
    fill.clear();
    used = 0;
  };
  for (const Delivery& d : deliveries) {
    const std::int64_t total = d.from.shape.elements();
    const std::uint64_t size = size_of(d.from.dtype);
    // Quantising and rows that lie apart need whole rows; everything else any whole elements.
    const bool by_row = d.to_scale || has_gaps(pb, d.to);
    const std::uint64_t unit =
        by_row && total > 0 ? size * static_cast<std::uint64_t>(total / d.from.shape[0]) : size;
    Rest rest = {d.from.extent.offset, size * static_cast<std::uint64_t>(total), unit};
    while (rest.bytes > 0) {
      const std::uint64_t bytes = next_bytes(rest, bytes_ - used);
      if (bytes == 0) {
        check(!fill.empty(), "a row of {} does not fit a staging buffer of {} bytes", d.from.shape,
              bytes_);
        read_out();
        continue;
      }
      const AlignedRange range = widen(rest.offset, bytes);
      const auto elements = [size](std::uint64_t n) { return static_cast<std::int64_t>(n / size); };
      fill.push_back({.delivery = &d,
                      .first = elements(rest.offset - d.from.extent.offset),
                      .count = elements(bytes),
                      .range = range,
                      .at = used});
      used += range.bytes;
      rest.offset += bytes;
      rest.bytes -= bytes;
      if (rest.bytes > 0) read_out();  // it ends where a request does
    }
  }
  if (!fill.empty()) emit(pb, fill, lane);
}

void StagingRing::emit(ProgramBuilder& pb, std::span<const Piece> pieces, Lane lane) {
  const Buffer ring = next();
  std::shared_ptr<CheckedReads>& checks = pb.set().checked_reads;
  if (!checks && pb.set().executable) checks = std::make_shared<CheckedReads>();
  std::vector<Request> requests;
  std::vector<CopyOut> outs;
  BufferList writes;
  double bytes = 0;
  bool copies_bytes = true;
  for (const Piece& p : pieces) {
    const Delivery& d = *p.delivery;
    const std::uint64_t piece_bytes = static_cast<std::uint64_t>(p.count) * size_of(d.from.dtype);
    for (std::uint64_t done = 0; done < p.range.bytes; done = request_end(p.range, done)) {
      const std::uint64_t request = request_end(p.range, done) - done;
      const std::uint64_t offset = p.range.offset + done;
      const std::uint64_t wanted = std::min(request, p.range.skip + piece_bytes - done);
      const auto [values, values_end] =
          whole_elements(offset, wanted, p.range.offset + p.range.skip, size_of(d.from.dtype));
      CheckedReads::Read* check = nullptr;
      if (checks && d.from.extent.file != nullptr && values < values_end) {
        check = &checks->add({.file = d.from.extent.file,
                              .offset = offset + values,
                              .bytes = values_end - values,
                              .tensor = d.name,
                              .dtype = d.from.dtype});
      }
      requests.push_back({.file = d.from.extent.file,
                          .offset = offset,
                          .bytes = request,
                          .at = p.at + done,
                          .wanted = wanted,
                          .check = check,
                          .values = static_cast<std::uint32_t>(values),
                          .value_bytes = static_cast<std::uint32_t>(values_end - values)});
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
    copies_bytes &= !out.to_scale && ops::moves_bytes(d.from.dtype, pb.set().spec(out.to));
    writes.push_back(out.to);
    outs.push_back(out);
  }
  const auto parts = static_cast<std::uint32_t>(requests.size());
  pb.emit("read",
          {.writes = {ring},
           .lane = Lane::disk,
           .cost = {.work = Work::disk, .bytes = bytes},
           .splits = parts},
          [requests = std::move(requests), ring, checks = checks.get(),
           verify = pb.backend().verify_weights](const Bindings& b) {
            read_request(requests[b.part()], b.out(ring), checks, verify);
          });
  writes.push_back(ring);  // a piece may be moved to its alignment inside it
  pb.emit("copy_out",
          {.reads = {ring},
           .writes = std::move(writes),
           .lane = lane,
           .cost = {.work = Work::transfer, .bytes = 2 * bytes},
           .copies_bytes = copies_bytes},
          [outs = std::move(outs), ring](const Bindings& b) {
            const TensorView from = b.out(ring);
            for (const CopyOut& c : outs) copy_out(c, from, b);
          });
}

}  // namespace ballast
