#include <cstring>

#include "core/simd.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "ops/conv3d/conv3d_kernels.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

constexpr std::int64_t kTaskBytes = 128 << 10;  // a thread is worth waking for some 10 us

// Which input row or column position q of the enlarged source shows; -1: zero.
inline std::int64_t conv_source(std::int64_t q, int zoom, int spread, std::int64_t size) {
  if (q < 0 || q % spread != 0) return -1;
  const std::int64_t at = q / spread / zoom;
  return at < size ? at : -1;
}

void patch_row(const ConvPatches& a, std::int64_t r) {
  std::byte* to = a.columns + r * a.row_bytes;
  const std::byte* const end = to + a.row_bytes;
  const std::int64_t at = a.first + r, h = at / a.out_width, w = at % a.out_width;
  const auto pixel = to_size(a.pixel_bytes);
  for (int i = 0; i < a.time; ++i) {
    for (int j = 0; j < a.kh; ++j) {
      const std::int64_t y =
          conv_source(h * a.stride_h + j - a.pad_h, a.zoom, a.spread_h, a.height);
      for (int k = 0; k < a.kw; ++k, to += pixel) {
        const std::int64_t x =
            conv_source(w * a.stride_w + k - a.pad_w, a.zoom, a.spread_w, a.width);
        if (!a.frame[i] || y < 0 || x < 0) {
          std::memset(to, 0, pixel);
        } else {
          std::memcpy(to, a.frame[i] + (y * a.width + x) * a.pixel_bytes, pixel);
        }
      }
    }
  }
  if (to < end) std::memset(to, 0, to_size(end - to));
}

template <class T>
void reorder_output(const ConvReordering& a, std::int64_t n) {
  const T* from = reinterpret_cast<const T*>(a.from);
  T* to = reinterpret_cast<T*>(a.to);
  if (a.kind == ConvReorder::pack) {
    T* row = to + n * a.to_row;
    for (std::int64_t i = a.taps * a.channels; i < a.to_row; ++i) row[i] = 0;
    for (std::int64_t c = 0; c < a.channels; ++c) {
      for (std::int64_t t = 0; t < a.taps; ++t) {
        row[t * a.channels + c] = from[n * a.from_row + c * a.taps + t];
      }
    }
  } else if (a.kind == ConvReorder::unpack) {
    for (std::int64_t t = 0; t < a.taps; ++t) {
      for (std::int64_t c = 0; c < a.channels; ++c) {
        to[n * a.to_row + c * a.taps + t] = from[n * a.from_row + t * a.channels + c];
      }
    }
  } else {  // n is a channel here: one row of the result
    T* row = to + n * a.to_row;
    for (std::int64_t i = a.taps * a.outputs; i < a.to_row; ++i) row[i] = 0;
    for (std::int64_t t = 0; t < a.taps; ++t) {
      for (std::int64_t o = 0; o < a.outputs; ++o) {
        row[(a.taps - 1 - t) * a.outputs + o] = from[o * a.from_row + t * a.channels + n];
      }
    }
  }
}

}  // namespace

void conv_patches(const ConvPatches& a, ThreadPool& pool) {
  const std::int64_t wanted = kTaskBytes / a.row_bytes;
  const std::int64_t block = wanted > 1 ? wanted : 1;
  pool.parallel((a.rows + block - 1) / block, [&](std::int64_t task, int) {
    const std::int64_t begin = task * block, all = begin + block;
    const std::int64_t end = all < a.rows ? all : a.rows;
    for (std::int64_t r = begin; r < end; ++r) patch_row(a, r);
  });
}

void conv_reorder(const ConvReordering& a, ThreadPool& pool) {
  const std::int64_t rows = a.kind == ConvReorder::transpose ? a.channels : a.outputs;
  pool.parallel(rows, [&](std::int64_t n, int) {
    if (a.size == 4) {
      reorder_output<std::uint32_t>(a, n);
    } else {
      reorder_output<std::uint16_t>(a, n);
    }
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
