#pragma once

// What conv3d.cpp hands to its kernels: sizes and pointers that were checked. Plain C++17 data, so
// that vector and CUDA sources share it.

#include <cstddef>
#include <cstdint>

namespace ballast::ops {

// columns[r, (i, j, k), c] for the outputs first ... first + rows - 1 of one frame. Elements are
// moved as they are, `size` bytes each; frames are given by the three addresses that the taps in
// time read, null where they are zero.
struct ConvPatches {
  static constexpr int kMaxTime = 3;
  const std::byte* frame[kMaxTime] = {};
  std::byte* columns = nullptr;
  std::int64_t row_bytes = 0;  // from row to row of columns; the end behind the taps is zeroed
  std::int64_t first = 0, rows = 0;
  std::int64_t height = 0, width = 0;  // of the input
  std::int64_t out_width = 0;
  std::int64_t pixel_bytes = 0;  // C elements
  int time = 1, kh = 1, kw = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  int zoom = 1, spread_h = 1, spread_w = 1;
};

enum class ConvReorder : std::uint8_t { pack, unpack, transpose };

// Elements of `size` bytes: see ops/conv3d/conv3d.h.
struct ConvReordering {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t outputs = 0, channels = 0, taps = 0;
  std::int64_t from_row = 0, to_row = 0;  // elements of a row
  int size = 4;
  ConvReorder kind = ConvReorder::pack;
};

}  // namespace ballast::ops
