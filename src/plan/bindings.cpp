#include "plan/bindings.h"

#include "core/error.h"
#include "core/to_size.h"

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

// Where it begins in its tier; noted as touched.
std::uint64_t Bindings::place(Buffer b) const {
  const BufferSpec& s = set_.spec(b);
  std::uint64_t at = offsets_[s.root.id];
  if (s.role == Role::staging && arenas_.rings) at = arenas_.rings->offset(s.root, at);
  at += s.offset;
  if (high_water_) {
    std::uint64_t& top = high_water_->top[to_size(s.tier)];
    top = std::max(top, at + with_room(s, set_.spec(s.root)));
  }
  return at;
}

TensorView Bindings::bind(Buffer b) const {
  const BufferSpec& s = set_.spec(b);
  check(s.tier != Tier::disk, "{} takes {} for memory, it is on disk", now_.name, set_.name(b));
  return TensorView(arenas_.base[to_size(s.tier)] + place(b), s.dtype, s.shape, s.strides,
                    s.tier == Tier::device ? set_.backend.device : Device::cpu);
}

StoredRange Bindings::stored(Buffer b) const {
  const BufferSpec& s = set_.spec(b);
  check(s.tier == Tier::disk, "{} looks for {} on disk, it is memory", now_.name, set_.name(b));
  return {.file = arenas_.scratch, .offset = place(b), .bytes = s.bytes};
}

void Bindings::check_reads(Buffer b) const {
  check(std::ranges::find(now_.reads, b) != now_.reads.end(), "{} reads {} without declaring it",
        now_.name, set_.name(b));
}

void Bindings::check_writes(Buffer b) const {
  check(std::ranges::find(now_.writes, b) != now_.writes.end(), "{} writes {} without declaring it",
        now_.name, set_.name(b));
}

ConstTensorView Bindings::in(Buffer b) const {
  check_reads(b);
  return bind(b);
}

TensorView Bindings::out(Buffer b) const {
  check_writes(b);
  return bind(b);
}

Communicator& Bindings::group(int i) const {
  check(i >= 0 && now_.cost.group == i, "{} exchanges with group {} without declaring it",
        now_.name, i);
  check(arenas_.communicators, "{} has nobody to exchange with", now_.name);
  return *arenas_.communicators[i];
}

StoredRange Bindings::stored_in(Buffer b) const {
  check_reads(b);
  return stored(b);
}

StoredRange Bindings::stored_out(Buffer b) const {
  check_writes(b);
  return stored(b);
}

}  // namespace ballast
