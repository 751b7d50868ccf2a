#pragma once

// For kernel sources (_cpu.cpp): reading and writing the parameter that an optimizer updates.

#include "core/simd_random.h"
#include "core/to_size.h"
#include "ops/kernels/elementwise.h"
#include "ops/kernels/update_rounding.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::u32v;

inline f32v sqrt(f32v x) {
  f32v y = {};
  for (int i = 0; i < kLanes; ++i) y[i] = __builtin_sqrtf(x[i]);
  return y;
}

// x as it will be read back.
template <DType T>
inline f32v rounded(f32v x) {
  return simd::BALLAST_ISA::widen<T>(simd::BALLAST_ISA::narrow<T>(x));
}

inline void write_stochastic(Element<DType::bf16>* p, f32v x, u32v words, std::int64_t n) {
  const auto y = simd::BALLAST_ISA::narrow_stochastic(x, words);
  __builtin_memcpy(p, &y, to_size(n) * sizeof(*p));
}

// RandomSource::word or RandomSource::half.
enum class RandomBits : std::uint8_t { word, half };

// Random words of consecutive elements, made a piece at a time.
template <RandomBits B>
class RandomWords {
 public:
  explicit RandomWords(const RandomSource& source) : source_(source) {}

  // Of elements [first, first + n), n <= kLanes.
  u32v at(std::uint64_t first, std::int64_t n) {
    const std::uint64_t base = first / kPiece * kPiece;
    if (base != base_) {
      make(base, words_);
      base_ = base;
      both_ = false;
    }
    if (!both_ && first + static_cast<std::uint64_t>(n) > base + kPiece) {
      make(base + kPiece, words_ + kPiece);
      both_ = true;
    }
    u32v w = {};
    __builtin_memcpy(&w, words_ + (first - base), to_size(n) * 4);
    return w;
  }

 private:
  static constexpr std::int64_t kPiece = B == RandomBits::word ? kRandomPiece : 2 * kRandomPiece;

  void make(std::uint64_t base, std::uint32_t* out) const {
    if constexpr (B == RandomBits::word) {
      simd::BALLAST_ISA::random_words(source_, base, out);
    } else {
      std::uint32_t words[kRandomPiece];
      simd::BALLAST_ISA::random_words(source_, base / 2, words);
      for (std::int64_t j = 0; j < kRandomPiece; ++j) {
        out[2 * j] = words[j];
        out[2 * j + 1] = words[j] << 16;
      }
    }
  }

  RandomSource source_;
  std::uint64_t base_ = ~std::uint64_t{0};
  bool both_ = false;
  std::uint32_t words_[2 * kPiece];
};

// One per task: it holds the random words of the elements at hand.
template <DType P, UpdateRounding R, RandomBits B>
class ParameterWriter {
 public:
  static constexpr DType kType = P;
  static constexpr UpdateRounding kRounding = R;

  ParameterWriter(const TensorView& p, const ParameterRounding& r)
      : p_(reinterpret_cast<Element<P>*>(p.data)),
        carry_(reinterpret_cast<Element<P>*>(r.carry.data)),
        first_(static_cast<std::uint64_t>(r.first_element)),
        words_(r.random) {}

  f32v read(std::int64_t i, std::int64_t n) const { return cpu::BALLAST_ISA::read<P>(p_ + i, n); }

  // p = base + change.  Kahan: c = carry + change;  p = round(base + c);  carry = c + (base - p)
  void write(std::int64_t i, std::int64_t n, f32v base, f32v change) {
    if constexpr (R == UpdateRounding::kahan) {
      const f32v c = cpu::BALLAST_ISA::read<P>(carry_ + i, n) + change;
      const f32v p = rounded<P>(base + c);
      cpu::BALLAST_ISA::write<P>(p_ + i, p, n);
      cpu::BALLAST_ISA::write<P>(carry_ + i, c + (base - p), n);
    } else if constexpr (R == UpdateRounding::stochastic) {
      write_stochastic(p_ + i, base + change, words(i, n), n);
    } else {
      cpu::BALLAST_ISA::write<P>(p_ + i, base + change, n);
    }
  }

  // A state that may move by less than its steps, such as v. bf16 takes the upper half of a random
  // word; the parameter has that of its element, the state gets the lower one.
  template <DType S>
  void write_state(Element<S>* state, std::int64_t i, std::int64_t n, f32v x) {
    if constexpr (R == UpdateRounding::stochastic && S == DType::bf16) {
      static_assert(B == RandomBits::word);
      write_stochastic(state + i, x, words(i, n) << 16, n);
    } else {
      cpu::BALLAST_ISA::write<S>(state + i, x, n);
    }
  }

 private:
  u32v words(std::int64_t i, std::int64_t n) {
    return words_.at(first_ + static_cast<std::uint64_t>(i), n);
  }

  Element<P>* p_;
  Element<P>* carry_;
  std::uint64_t first_;
  RandomWords<B> words_;
};

// Calls f(make), where make() is a ParameterWriter for p.
template <RandomBits B = RandomBits::word, class F>
inline void with_writer(const TensorView& p, const ParameterRounding& r, F&& f) {
  const auto with = [&]<DType P, UpdateRounding R>() {
    f([&] { return ParameterWriter<P, R, B>(p, r); });
  };
  if (p.dtype == DType::f32) {
    with.template operator()<DType::f32, UpdateRounding::nearest>();
  } else if (r.rounding == UpdateRounding::nearest) {
    with.template operator()<DType::bf16, UpdateRounding::nearest>();
  } else if (r.rounding == UpdateRounding::kahan) {
    with.template operator()<DType::bf16, UpdateRounding::kahan>();
  } else {
    with.template operator()<DType::bf16, UpdateRounding::stochastic>();
  }
}

// f(begin, end) over [0, n) on all threads.
template <class F>
inline void each_range(ThreadPool& pool, std::int64_t n, F&& f) {
  pool.parallel((n + kElementsPerTask - 1) / kElementsPerTask, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kElementsPerTask, end = begin + kElementsPerTask;
    f(begin, end < n ? end : n);
  });
}

inline float scale_of(const ConstTensorView& grad_scale) {
  return grad_scale.data ? *reinterpret_cast<const float*>(grad_scale.data) : 1.0f;
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
