#pragma once

#include <cstddef>

namespace ballast {

// An index or a count as the standard library wants it. Always inlined: sources are compiled for
// several instruction sets, and a copy made for one of them must not serve the others.
template <class T>
[[gnu::always_inline]] constexpr std::size_t to_size(T x) noexcept {
  return static_cast<std::size_t>(x);
}

}  // namespace ballast
