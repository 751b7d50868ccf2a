#pragma once

#include <cstdint>
#include <span>

// What Unicode says of single code points, as flat rows of three numbers, sorted by the first.
namespace ballast::data {

// Twice the code point, plus 1 when its two parts compose to it again; the parts, the second 0
// where there is one. Hangul syllables are not in it: they are computed.
std::span<const std::uint32_t> compositions();
// First, last, canonical combining class; classes of 0 are left out.
std::span<const std::uint32_t> combining_classes();
// First, last, class: 1 control, 2 extends, 3 spacing mark, 4 prepended (UAX 29).
std::span<const std::uint32_t> cluster_classes();
// U+FF01..U+FFEF: code point and the one or two (else 0) it is a wide or narrow form of.
std::span<const std::uint32_t> width_forms();

}  // namespace ballast::data
