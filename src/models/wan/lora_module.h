#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/shape.h"
#include "memory/disk_file.h"

namespace ballast::wan {

// A tensor of a LoRA, row-major and packed: in memory, in a file, elsewhere, or nothing but zeros.
struct LoraNumbers {
  Shape shape;
  DType dtype = DType::f32;           // floating
  const std::byte* memory = nullptr;  // someone else's
  Extent extent = {};                 // read where memory is nullptr and extent.file is not
  std::string key = {};               // in its file, for messages
  // Memory that only its owner can copy from, a GPU's: bytes from an offset on. Used where memory
  // is nullptr and this is not.
  std::function<void(std::uint64_t, std::span<std::byte>)> fetch = {};

  std::int64_t elements() const { return shape.elements(); }

  // Elements [first, first + count), as they are stored and as f32.
  void read(std::int64_t first, std::int64_t count, std::byte* to) const;
  void read(std::int64_t first, std::span<float> to) const;
};

// What a LoRA does to one linear layer:
//   W' = W + strength (alpha / rank) up down + strength diff,   b' = b + strength diff_b
// down is [rank, in], up is [out, rank]; of convolutions in has several dimensions.
struct LoraModule {
  std::string name;       // official: "blocks.0.self_attn.q"
  std::int64_t rank = 0;  // 0: there are no factors, only differences
  double alpha = 0;       // rank where the file stores none
  LoraNumbers down, up;
  std::optional<LoraNumbers> diff, diff_b;

  double scale() const { return rank == 0 ? 1 : alpha / static_cast<double>(rank); }
  std::int64_t in() const { return down.elements() / rank; }
  std::int64_t out() const { return up.elements() / rank; }
};

// How a scale is put into the factors: down and up are multiplied by these. Powers of two are
// divided between the two so that small numbers stay clear of the end of f16's range: s and 1,
// doubled and halved while twice the first is below the second.
struct FoldedScale {
  float down = 1, up = 1;
};
FoldedScale fold_scale(double scale);

// f32 to f32, bf16 or f16, to nearest. A finite number that the type cannot hold is an input error
// that names the tensor.
void store_numbers(std::span<const float> from, DType dtype, std::byte* to, std::string_view key);

}  // namespace ballast::wan
