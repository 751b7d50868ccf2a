#include "core/simd_random.h"
#include "core/to_size.h"

namespace ballast::cpu::BALLAST_ISA {

using namespace simd::BALLAST_ISA;

void round_stochastically(const float* from, void* to, DType to_type, std::int64_t n,
                          const RandomSource& source, std::uint64_t first) {
  with_dtype<DType::f16, DType::bf16, DType::f8_e4m3, DType::f8_e5m2>(to_type, [&](auto tag) {
    constexpr DType T = tag;
    auto* out = static_cast<Element<T>*>(to);
    std::uint32_t words[kRandomPiece];
    for (std::int64_t i = 0; i < n;) {
      const std::uint64_t element = first + static_cast<std::uint64_t>(i);
      const auto skip = static_cast<std::int64_t>(element % kRandomPiece);
      random_words(source, element - static_cast<std::uint64_t>(skip), words);
      const std::int64_t left = kRandomPiece - skip;
      const std::int64_t count = n - i < left ? n - i : left;
      for (std::int64_t j = 0; j < count; j += kLanes) {
        const std::int64_t m = count - j < kLanes ? count - j : kLanes;
        u32v w = {};
        std::memcpy(&w, words + skip + j, to_size(m) * 4);
        const f32v x = m == kLanes ? load(from + i + j) : load_partial(from + i + j, m);
        const Storage<T> y = narrow_stochastic<T>(x, w);
        std::memcpy(out + i + j, &y, to_size(m) * sizeof(Element<T>));
      }
      i += count;
    }
  });
}

}  // namespace ballast::cpu::BALLAST_ISA
