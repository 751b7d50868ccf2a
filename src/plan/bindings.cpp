#include "plan/bindings.h"

#include <algorithm>

#include "core/error.h"

namespace ballast {
namespace {

// The bytes of a view; of rows that lie apart, the last one as long as the others: what is behind
// it was taken for it.
std::uint64_t with_room(const BufferSpec& view, const BufferSpec& root) {
  if (view.shape.rank() != 2 || view.bytes == 0) return view.bytes;
  const auto rows = static_cast<std::uint64_t>(view.shape[0] * view.strides[0]);
  return std::max(view.bytes, std::min(rows * size_of(view.dtype), root.bytes - view.offset));
}

}  // namespace

TensorView Bindings::bind(Buffer b) const {
  const BufferSpec& s = set_.spec(b);
  const auto tier = static_cast<std::size_t>(s.tier);
  const std::uint64_t at = offsets_[s.root.id] + s.offset;
  if (high_water_) {
    std::uint64_t& top = high_water_->top[tier];
    top = std::max(top, at + with_room(s, set_.spec(s.root)));
  }
  return TensorView(arenas_.base[tier] + at, s.dtype, s.shape, s.strides,
                    s.tier == Tier::device ? set_.backend.device : Device::cpu);
}

ConstTensorView Bindings::in(Buffer b) const {
  check(std::ranges::find(now_.reads, b) != now_.reads.end(), "{} reads {} without declaring it",
        now_.name, set_.name(b));
  return bind(b);
}

TensorView Bindings::out(Buffer b) const {
  check(std::ranges::find(now_.writes, b) != now_.writes.end(), "{} writes {} without declaring it",
        now_.name, set_.name(b));
  return bind(b);
}

}  // namespace ballast
