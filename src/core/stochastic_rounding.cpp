#include "core/stochastic_rounding.h"

#include "core/error.h"
#include "core/simd.h"

namespace ballast {

namespace cpu {
BALLAST_PER_ISA(void round_stochastically(const float* from, void* to, DType to_type,
                                          std::int64_t n, const RandomSource& source,
                                          std::uint64_t first))
}

void round_stochastically(const float* from, void* to, DType to_type, std::int64_t n,
                          const RandomSource& source, std::uint64_t first) {
  check(info(to_type).floating && size_of(to_type) <= 2, "stochastic rounding to {}", to_type);
  BALLAST_ISA_CALL(cpu, round_stochastically, from, to, to_type, n, source, first);
}

}  // namespace ballast
