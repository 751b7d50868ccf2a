#include <cmath>

#include "core/to_size.h"
#include "ops/adamw_8bit.h"
#include "ops/kernels/ordered_sum_simd.h"
#include "ops/kernels/parameter_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {

using simd::BALLAST_ISA::with_dtype;

namespace {

static_assert(kElementsPerTask % kStateBlock == 0 && kSumPiece % kStateBlock == 0);

struct Coefficients {
  float scale, keep_m, add_m, keep_v, add_v, rate, eps, decay;
  bool decays;
};

// One moment in memory: codes and magnitudes, or plain f32.
struct Moment {
  std::uint8_t* codes;
  float* absmax;
  float* plain;
  const DynamicMap* map;

  Moment(const TensorView& t, const TensorView& scale, const DynamicMap& m)
      : codes(t.dtype == DType::u8 ? reinterpret_cast<std::uint8_t*>(t.data) : nullptr),
        absmax(reinterpret_cast<float*>(scale.data)),
        plain(t.dtype == DType::u8 ? nullptr : reinterpret_cast<float*>(t.data)),
        map(&m) {}

  // n elements from `first` on, the rest of the block is zero.
  void load(std::int64_t first, std::int64_t n, float* out) const {
    if (plain != nullptr) {
      __builtin_memcpy(out, plain + first, to_size(n) * 4);
    } else {
      const float scale = absmax[first / kStateBlock];
      for (std::int64_t j = 0; j < n; ++j) out[j] = map->value[codes[first + j]] * scale;
    }
    for (std::int64_t j = n; j < kStateBlock; ++j) out[j] = 0;
  }

  void store(std::int64_t first, std::int64_t n, const float* x, float largest) const {
    if (plain != nullptr) {
      __builtin_memcpy(plain + first, x, to_size(n) * 4);
      return;
    }
    absmax[first / kStateBlock] = largest;
    for (std::int64_t j = 0; j < n; ++j) {
      const float ratio = largest > 0 ? x[j] / largest : 0.0f;
      std::uint32_t bits;
      __builtin_memcpy(&bits, &ratio, sizeof bits);
      std::uint32_t code = map->start[bits >> 31][DynamicMap::bucket(bits)];
      code += ratio >= map->threshold[code];
      code += ratio >= map->threshold[code];
      codes[first + j] = static_cast<std::uint8_t>(code);
    }
  }

  float raw(std::int64_t i) const {
    return plain != nullptr ? plain[i] : static_cast<float>(codes[i]);
  }
};

inline f32v magnitude(f32v x) {
  return simd::BALLAST_ISA::from_bits(simd::BALLAST_ISA::bits(x) & 0x7fffffffu);
}

// Writes p, or the shift and p, of n elements from i on; change is 0 where nothing may happen.
template <class Writer>
inline void apply(Writer& p, const AdamW8bit& a, const Coefficients& c, std::int64_t i,
                  std::int64_t n, f32v change, f32v decay) {
  constexpr DType P = Writer::kType;
  const f32v old = p.read(i, n);
  if (a.shift.data != nullptr) {
    auto* at = reinterpret_cast<Element<P>*>(a.shift.data) + i;
    f32v shift = rounded<P>(read<P>(at, n) + change);
    if (c.decays) shift = rounded<P>(shift * decay);
    const f32v now = rounded<P>(old + shift);
    write<P>(reinterpret_cast<Element<P>*>(a.p.data) + i, now, n);
    write<P>(at, shift + rounded<P>(old - now), n);
  } else if (Writer::kRounding != UpdateRounding::nearest) {
    p.write(i, n, old * decay, change * decay);
  } else {
    const f32v now = rounded<P>(old + change);
    write<P>(reinterpret_cast<Element<P>*>(a.p.data) + i, c.decays ? now * decay : now, n);
  }
}

template <DType G, class Writer>
inline void update_block(const AdamW8bit& a, const Coefficients& c, const Moment& m_state,
                         const Moment& v_state, Writer& p, std::int64_t first, std::int64_t count) {
  const auto* g = reinterpret_cast<const Element<G>*>(a.g.data);
  float m[kStateBlock], v[kStateBlock];
  m_state.load(first, count, m);
  v_state.load(first, count, v);
  f32v m_largest = {}, v_largest = {};
  each_vector(0, count, [&](std::int64_t j, std::int64_t n) {
    const f32v gradient = read<G>(g + first + j, n) * c.scale;
    const f32v square = gradient * gradient;
    const auto good = square < __builtin_inff();
    f32v m_new = simd::BALLAST_ISA::load(m + j) * c.keep_m + gradient * c.add_m;
    f32v v_new = simd::BALLAST_ISA::load(v + j) * c.keep_v + square * c.add_v;
    m_new = good ? m_new : f32v{};
    v_new = good ? v_new : f32v{};
    m_largest = simd::BALLAST_ISA::max(m_largest, magnitude(m_new));
    v_largest = simd::BALLAST_ISA::max(v_largest, v_new);
    simd::BALLAST_ISA::store(m + j, m_new);
    simd::BALLAST_ISA::store(v + j, v_new);
    const f32v change = m_new / (sqrt(v_new) + c.eps) * -c.rate;
    const f32v decay = good ? simd::BALLAST_ISA::splat(c.decay) : simd::BALLAST_ISA::splat(1.0f);
    // Where g is 0 from the first step on and eps is 0, change is 0 / 0.
    apply(p, a, c, first + j, n, good & (m_new != 0.0f) ? change : f32v{}, decay);
  });
  m_state.store(first, count, m, simd::BALLAST_ISA::reduce_max(m_largest));
  v_state.store(first, count, v, simd::BALLAST_ISA::reduce_max(v_largest));
}

template <DType G>
inline double stabilized(const AdamW8bit& a, const Moment& v, float scale, ThreadPool& pool) {
  const std::int64_t n = a.p.shape.elements();
  if (!a.stabilize || n == 0) return a.learning_rate;
  const auto* g = reinterpret_cast<const Element<G>*>(a.g.data);
  const double floor = a.options.eps * a.options.eps;
  double sum = 0;
  add_ordered(pool, n, &sum, [&](std::int64_t begin, std::int64_t end) {
    double part = 0;
    each_vector(begin, end, [&](std::int64_t i, std::int64_t count) {
      const f32v x = read<G>(g + i, count) * scale;
      for (std::int64_t j = 0; j < count; ++j) {
        const double code = v.raw(i + j), square = static_cast<double>(x[j]) * x[j];
        part += square / (code > floor ? code : floor);
      }
    });
    return part;
  });
  const double rms = __builtin_sqrt(sum / static_cast<double>(n));
  return rms > 1 ? a.learning_rate / rms : a.learning_rate;
}

}  // namespace

void adamw_8bit(const AdamW8bit& a, const DynamicMap& m_map, const DynamicMap& v_map,
                ThreadPool& pool) {
  const AdamWOptions& o = a.options;
  const double k = static_cast<double>(a.step);
  const double k1 = 1 - ::pow(o.beta1, k), k2 = ::sqrt(1 - ::pow(o.beta2, k));
  const Moment m(a.m, a.m_absmax, m_map), v(a.v, a.v_absmax, v_map);
  const std::int64_t n = a.p.shape.elements();
  with_writer<RandomBits::half>(a.p, a.rounding, [&](auto make_writer) {
    with_dtype<DType::f32, DType::bf16>(a.g.dtype, [&](auto gradient_type) {
      constexpr DType G = gradient_type;
      const float scale = scale_of(a.grad_scale);
      const double rate = stabilized<G>(a, v, scale, pool);
      const Coefficients c = {.scale = scale,
                              .keep_m = static_cast<float>(o.beta1),
                              .add_m = static_cast<float>(1 - o.beta1),
                              .keep_v = static_cast<float>(o.beta2),
                              .add_v = static_cast<float>(1 - o.beta2),
                              .rate = static_cast<float>(rate * k2 / k1),
                              .eps = static_cast<float>(k2 * o.eps),
                              .decay = static_cast<float>(1 - rate * o.weight_decay),
                              .decays = o.weight_decay > 0};
      each_range(pool, n, [&](std::int64_t begin, std::int64_t end) {
        auto p = make_writer();
        for (std::int64_t first = begin; first < end; first += kStateBlock) {
          const std::int64_t left = end - first;
          update_block<G>(a, c, m, v, p, first, left < kStateBlock ? left : kStateBlock);
        }
      });
    });
  });
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
