#include "ops/adamw_8bit_stability.cuh"
#include "ops/kernels/parameter_cuda.cuh"
#include "ops/kernels/rounded_math_cuda.cuh"
#include "ops/kernels/row_kernel.cuh"

namespace ballast::ops::cuda {
namespace {

__device__ StateTables tables_in_module;

// A call, so that what hardly happens takes no room among the instructions of what does.
__device__ __attribute__((noinline)) float rare_step(float m, float v, float eps) {
  return __fdiv_rn(m, add(__fsqrt_rn(v), eps));
}

template <class P, class G>
struct Tensor {
  P* p;
  P* shift;  // may be null
  const G* g;
  Moment m, v;
  ParameterRounding rounding;
  Rates rates;
  std::int64_t elements;
  unsigned first_run;  // counted through all tensors of the launch
  bool in_eights, decays;
};

// What a thread takes from memory for one block of states.
template <class P, class G>
struct Taken {
  Eight<P> p;
  Eight<G> g;
  uint2 m, v;
  float m_scale, v_scale;
};
// ... and where.
template <class P, class G>
struct Place {
  P* p;
  const G* g;
  std::uint8_t *m, *v;
  unsigned block;

  __device__ __forceinline__ Place(const Tensor<P, G>& t, unsigned b) : block(b) {
    p = t.p + element();
    g = t.g + element();
    m = t.m.codes() + element();
    v = t.v.codes() + element();
  }
  __device__ __forceinline__ std::int64_t element() const {
    return std::int64_t{block} * kStateBlock + threadIdx.x % 32 * 8;
  }
  __device__ __forceinline__ void load(const Tensor<P, G>& t, int ahead, Taken<P, G>& to) const {
    to.p.load(p + ahead * kStateBlock);
    to.g.load(g + ahead * kStateBlock);
    to.m = *reinterpret_cast<const uint2*>(m + ahead * kStateBlock);
    to.v = *reinterpret_cast<const uint2*>(v + ahead * kStateBlock);
    to.m_scale = t.m.absmax[block + ahead];
    to.v_scale = t.v.absmax[block + ahead];
  }
  __device__ __forceinline__ void advance() {
    p += kStateBlock;
    g += kStateBlock;
    m += kStateBlock;
    v += kStateBlock;
    ++block;
  }
};

// Parameters until they are changed: as they lie in memory, or as numbers.
struct Numbers {
  float x[8];
  __device__ __forceinline__ void unpack(float* to) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) to[k] = x[k];
  }
};
template <bool kWhole, class P>
using Old = std::conditional_t<kWhole, Eight<P>, Numbers>;
// All that a launch updates. Memory gives a multiprocessor 1.6 elements per clock where all is in
// 16 and 8 bits, 80 instructions for each: what is looked at of an element is its part in the
// extremes of its thread's eight, and only eights with zeros, tiny or infinite numbers among them
// are looked at again.
template <class P, class G, ParameterRounding::Kind kKind>
struct Updates {
  static constexpr int kThreads =
      kKind == ParameterRounding::kahan                                            ? 256
      : kKind == ParameterRounding::stochastic || sizeof(P) != 2 || sizeof(G) != 2 ? 320
                                                                                   : 384;

  Tensor<P, G> tensor[kAdamWTensors];
  const void* grad_scale;
  const Rates* stabilized;  // null: each tensor's own
  float keep_m, add_m, keep_v, add_v, eps;
  int count;
  unsigned runs, run_length;  // blocks of states that a warp takes in a row
  RoundKeys keys;             // stochastic

  // To the parameters' type and back; two at a time are converted faster.
  static __device__ __forceinline__ void round(float (&x)[8]) {
    Eight<P> eight;
    pack_eight(eight, x);
    eight.unpack(x);
  }

  // bad: a bit for each of the eight that stays what it is.
  template <bool kWhole, bool kAllGood>
  __device__ __forceinline__ void apply(const Tensor<P, G>& t, std::int64_t i, int count, P* p,
                                        const Old<kWhole, P>& before, const float (&change)[8],
                                        float decay, unsigned bad) const {
    float old[8];
    before.unpack(old);
    const auto decay_of = [&](int k) { return kAllGood ? decay : bad >> k & 1 ? 1.0f : decay; };
    float now[8];
    if (t.shift != nullptr) {
      float s[8];
      load_some<kWhole>(t.shift + i, count, s);
#pragma unroll
      for (int k = 0; k < 8; ++k) s[k] = cuda::add(s[k], change[k]);
      round(s);
      if (t.decays) {
#pragma unroll
        for (int k = 0; k < 8; ++k) s[k] = mul(s[k], decay_of(k));
        round(s);
      }
      float lost[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) now[k] = cuda::add(old[k], s[k]);
      round(now);
#pragma unroll
      for (int k = 0; k < 8; ++k) lost[k] = sub(old[k], now[k]);
      round(lost);
#pragma unroll
      for (int k = 0; k < 8; ++k) s[k] = cuda::add(s[k], lost[k]);
      store_some<kWhole>(p, count, now);
      store_some<kWhole>(t.shift + i, count, s);
    } else if constexpr (kKind != ParameterRounding::nearest) {
      float base[8], decayed[8], most = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        base[k] = mul(old[k], decay_of(k));
        decayed[k] = mul(change[k], decay_of(k));
        now[k] = cuda::add(base[k], decayed[k]);
        most = larger_or_nan(most, fabsf(now[k]));
      }
      std::uint32_t words[8];
      const std::uint64_t element = t.rounding.first_element + static_cast<std::uint64_t>(i);
      if constexpr (kWhole && kKind == ParameterRounding::stochastic) {
        const uint4 halves = aligned_halves(keys, t.rounding.random, element);
        if (most < 0x1p127f) return store_stochastic(p, now, halves);
        spread(halves, words);
      } else if constexpr (kKind == ParameterRounding::stochastic) {
#pragma unroll
        for (int k = 0; k < 8; ++k) words[k] = random_half(t.rounding.random, element + k);
      }
      write_parameter<kWhole>(t.rounding, t.p, i, count, base, decayed, words);
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) now[k] = cuda::add(old[k], change[k]);
      if (t.decays) {
        round(now);
#pragma unroll
        for (int k = 0; k < 8; ++k) now[k] = mul(now[k], decay_of(k));
      }
      store_some<kWhole>(p, count, now);
    }
  }

  // All threads of a warp, for one block of states: first and second are the moments, before and
  // after. Writes the parameters and gives the largest magnitudes of the block.
  template <bool kWhole>
  __device__ __forceinline__ float2 update(const Tensor<P, G>& t, std::int64_t i, int count, P* p,
                                           const float (&x)[8], const Old<kWhole, P>& old,
                                           float scale, const Rates& r, float (&first)[8],
                                           float (&second)[8]) const {
    float change[8];
    float m_most = 0, v_most = 0, m_least = kInfinity, v_least = kInfinity;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float gradient = mul(x[k], scale);
      first[k] = cuda::add(mul(first[k], keep_m), mul(gradient, add_m));
      second[k] = cuda::add(mul(second[k], keep_v), mul(mul(gradient, gradient), add_v));
      m_most = fmaxf(m_most, fabsf(first[k]));
      m_least = fminf(m_least, fabsf(first[k]));
    }
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      v_most = largest_of(v_most, second[k], second[k + 1]);
      v_least = least_of(v_least, second[k], second[k + 1]);
    }
    unsigned bad = 0;
    if (!(v_most < 0x1p60f)) {
      m_most = v_most = m_least = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float gradient = mul(x[k], scale);
        const bool good = mul(gradient, gradient) < kInfinity;
        bad |= good ? 0u : 1u << k;
        first[k] = good ? first[k] : 0.0f;
        second[k] = good ? second[k] : 0.0f;
        m_most = fmaxf(m_most, fabsf(first[k]));
        v_most = fmaxf(v_most, second[k]);
      }
    }
    const bool eps_in_range = eps >= 0x1p-40f && eps <= 0x1p39f;
    if (eps_in_range && m_least >= 0x1p-80f && m_most < 0x1p80f && v_least >= 0x1p-100f) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const Divisor by(cuda::add(root_of_normal(second[k]), eps));
        change[k] = mul(by.of_unsigned_zero(first[k]), -r.rate);
      }
    } else {
      step_with_care(first, second, eps_in_range, r.rate, change);
    }
    if (bad == 0) {
      apply<kWhole, true>(t, i, count, p, old, change, r.decay, 0);
    } else {
      apply<kWhole, false>(t, i, count, p, old, change, r.decay, bad);
    }
    // Numbers that are not negative are ordered as their bits are.
    return make_float2(__uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(m_most))),
                       __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v_most))));
  }

  // Some whole blocks of states one after the other, in eights; the next one is loaded while one is
  // worked on.
  __device__ __forceinline__ void run_eights(const Tensor<P, G>& t, const WorkTables& tables,
                                             float scale, const Rates& r, unsigned block,
                                             unsigned end) const {
    Place<P, G> place(t, block);
    Taken<P, G> taken;
    place.load(t, 0, taken);
#pragma unroll 1
    for (; place.block < end;) {
      float x[8], first[8], second[8];
      taken.g.unpack(x);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const std::uint32_t m = k < 4 ? taken.m.x : taken.m.y, v = k < 4 ? taken.v.x : taken.v.y;
        first[k] = mul(value_of(tables.m_value, m, k % 4), taken.m_scale);
        second[k] = mul(value_of(tables.v_value, v, k % 4), taken.v_scale);
      }
      const Eight<P> old = taken.p;
      if (place.block + 1 < end) place.load(t, 1, taken);
      const float2 most =
          update<true>(t, place.element(), 8, place.p, x, old, scale, r, first, second);
      if (threadIdx.x % 32 == 0) {
        t.m.absmax[place.block] = most.x;
        t.v.absmax[place.block] = most.y;
      }
      *reinterpret_cast<uint2*>(place.m) = eight_codes<true>(tables, first, most.x);
      *reinterpret_cast<uint2*>(place.v) = eight_codes<false>(tables, second, most.y);
      place.advance();
    }
  }

  // One block of states, any.
  __device__ __forceinline__ void run_any(const Tensor<P, G>& t, const WorkTables& tables,
                                          float scale, const Rates& r, std::int64_t block) const {
    const std::int64_t i = block * kStateBlock + threadIdx.x % 32 * 8, left = t.elements - i;
    const int count = left <= 0 ? 0 : left < 8 ? static_cast<int>(left) : 8;
    float x[8], first[8], second[8];
    Numbers old;
    load_some<false>(t.g + i, count, x);
    load_some<false>(t.p + i, count, old.x);
    t.m.load(tables.m_value, i, count, first);
    t.v.load(tables.v_value, i, count, second);
    const float2 most = update<false>(t, i, count, t.p + i, x, old, scale, r, first, second);
    t.m.template store<true>(tables, i, count, first, most.x);
    t.v.template store<false>(tables, i, count, second, most.y);
  }

  // Eights with zeros or with numbers of any size.
  __device__ __forceinline__ void step_with_care(const float (&first)[8], const float (&second)[8],
                                                 bool eps_in_range, float rate,
                                                 float (&change)[8]) const {
    Magnitudes of_first, of_second;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      of_first.take(first[k]);
      of_second.take(second[k]);
    }
    if (eps_in_range && of_first.between(-80, 80) && of_second.between(-100, 60)) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        change[k] = quotient_in_range(first[k], cuda::add(root_in_range(second[k]), eps));
      }
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) change[k] = rare_step(first[k], second[k], eps);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      // Where g is 0 from the first step on and eps is 0, this is 0 / 0.
      change[k] = first[k] != 0.0f ? mul(change[k], -rate) : 0.0f;
    }
  }
};

// A warp takes some blocks of states after the other, through all tensors. A block's warps share
// the tables, which take as long to copy as ten thousand elements: blocks stay, two at once. What a
// thread needs decides how many: registers that it lacked would wait in memory for what is loaded
// ahead.
constexpr int kBlocksAtOnce = 2;
template <class Op>
__global__ void __launch_bounds__(Op::kThreads, kBlocksAtOnce)
    update_blocks(const __grid_constant__ Op op, const StateTables* from) {
  extern __shared__ __align__(16) unsigned char shared[];
  auto& tables = *reinterpret_cast<WorkTables*>(shared);
  tables.copy(*from);
  __syncthreads();
  const float scale = scale_of(op.grad_scale);
  const unsigned warps = gridDim.x * (Op::kThreads / 32);
  int at = 0;
  for (unsigned run = (blockIdx.x * Op::kThreads + threadIdx.x) / 32; run < op.runs; run += warps) {
    while (at + 1 < op.count && run >= op.tensor[at + 1].first_run) ++at;
    const auto& t = op.tensor[at];
    const Rates r = op.stabilized != nullptr ? *op.stabilized : t.rates;
    const std::int64_t first = std::int64_t{run - t.first_run} * op.run_length;
    const std::int64_t blocks = (t.elements + kStateBlock - 1) / kStateBlock;
    const std::int64_t end = first + op.run_length < blocks ? first + op.run_length : blocks;
    const std::int64_t whole = t.in_eights ? t.elements / kStateBlock : 0;
    std::int64_t b = first;
    if (whole > first) {  // the same for the whole warp
      b = whole < end ? whole : end;
      op.run_eights(t, tables, scale, r, static_cast<unsigned>(first), static_cast<unsigned>(b));
    }
    for (; b < end; ++b) op.run_any(t, tables, scale, r, b);
  }
}

// f(Type<P>, Type<G>, kind of rounding)
template <class F>
void with_update(const AdamW8bit& a, F&& f) {
  with_activation(a.p.dtype, [&](auto p) {
    with_activation(a.g.dtype, [&](auto g) {
      with_rounding(p, a.rounding, [&](auto kind) { f(p, g, kind); });
    });
  });
}

template <class P, class G>
Tensor<P, G> tensor(const AdamW8bit& a, unsigned first_run) {
  const bool in_eights = sixteen(a.p.data) && sixteen(a.shift.data) && sixteen(a.g.data) &&
                         sixteen(a.m.data) && sixteen(a.v.data) && sixteen(a.rounding.carry) &&
                         a.m.dtype == DType::u8 && a.rounding.first_element % 8 == 0;
  return {static_cast<P*>(a.p.data),
          static_cast<P*>(a.shift.data),
          static_cast<const G*>(a.g.data),
          moment(a.m, a.m_absmax),
          moment(a.v, a.v_absmax),
          a.rounding,
          rates_of(a.learning_rate, a.k1, a.k2, a.weight_decay),
          a.p.elements(),
          first_run,
          in_eights,
          a.decays};
}

}  // namespace

StateTables* state_tables_in_module() {
  void* at = nullptr;
  check_cuda(cudaGetSymbolAddress(&at, tables_in_module), "adamw_8bit");
  return static_cast<StateTables*>(at);
}

void adamw_8bit(const AdamW8bit* tensors, int count, const StateTables* tables, void* stream) {
  const AdamW8bit& a = tensors[0];
  with_update(a, [&](auto p, auto g, auto kind) {
    using P = typename decltype(p)::type;
    using G = typename decltype(g)::type;
    using Op = Updates<P, G, decltype(kind)::value>;
    Op all;
    std::int64_t blocks = 0;
    for (int t = 0; t < count; ++t) blocks += blocks_for(tensors[t].p.elements(), kStateBlock);
    if (blocks == 0) return;
    const std::int64_t warps =
        std::int64_t{multiprocessors()} * (kBlocksAtOnce * Op::kThreads / 32);
    // Long runs, because nothing is loaded ahead of a run's first block: four to a warp, and all
    // end together. A tensor's last one may be short.
    all.run_length = blocks_for(blocks, 4 * warps - count);
    all.runs = 0;
    for (int t = 0; t < count; ++t) {
      all.tensor[t] = tensor<P, G>(tensors[t], all.runs);
      all.runs += blocks_for(tensors[t].p.elements(), kStateBlock * all.run_length);
    }
    all.grad_scale = a.grad_scale.data;
    all.stabilized = a.stabilize ? stabilized_rates<G>(a, stream) : nullptr;
    all.keep_m = a.keep_m;
    all.add_m = a.add_m;
    all.keep_v = a.keep_v;
    all.add_v = a.add_v;
    all.eps = a.eps;
    all.count = count;
    all.keys = round_keys(a.rounding.random);
    auto* const kernel = update_blocks<Op>;
    static const bool allowed = [&] {
      check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(sizeof(WorkTables))),
                 "adamw_8bit");
      return true;
    }();
    static_cast<void>(allowed);
    const unsigned grid = row_blocks(blocks_for(all.runs, Op::kThreads / 32), kBlocksAtOnce);
    kernel<<<grid, Op::kThreads, sizeof(WorkTables), stream_of(stream)>>>(all, tables);
  });
  check_launch("adamw_8bit");
}

}  // namespace ballast::ops::cuda
