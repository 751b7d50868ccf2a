#pragma once

#include "core/simd.h"

namespace ballast::test {

// Whether products of matrices that differ in their number of rows give the rows that they share
// the same bits. OpenBLAS has kernels of their own for small matrices where there is AVX-512,
// chooses them by shape, and they add in another order.
inline bool padding_keeps_kernels() { return isa() != Isa::avx512; }

}  // namespace ballast::test
