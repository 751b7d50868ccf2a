#include "plan/bindings.h"

#include <algorithm>

#include "core/error.h"

namespace ballast {

TensorView Bindings::bind(Buffer b) const {
  const BufferSpec& s = set_.spec(b);
  const auto tier = static_cast<std::size_t>(s.tier);
  const std::uint64_t at = offsets_[s.root.id] + s.offset;
  if (high_water_) {
    std::uint64_t& top = high_water_->top[tier];
    top = std::max(top, at + s.bytes);
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
