#include "ops/flow_loss.h"
#include "ops/kernels/ordered_sum_simd.h"

namespace ballast::ops::cpu::BALLAST_ISA {
namespace {

using simd::BALLAST_ISA::bits;
using simd::BALLAST_ISA::from_bits;
using simd::BALLAST_ISA::splat;
using simd::BALLAST_ISA::with_dtype;

// rho(e) = a * b and its slope. A NaN difference stays NaN in both: comparisons with it are false.
struct Square {
  Factors of(f32v e) const { return {e, e}; }
  f32v slope(f32v e) const { return e; }  // half of it: the 2 is in the weight
};
// With c = min(|e|, delta), both branches of Huber's function are c (|e| - c / 2).
struct Huber {
  float delta;
  Factors of(f32v e) const {
    const f32v size = from_bits(bits(e) & 0x7fffffffu);
    const f32v c = size > delta ? splat(delta) : size;
    return {c, size - c * 0.5f};
  }
  f32v slope(f32v e) const {
    const f32v below = e > delta ? splat(delta) : e;
    return below < -delta ? splat(-delta) : below;
  }
};

struct NoMask {
  f32v apply(f32v x, std::int64_t, std::int64_t) const { return x; }
};
// Element i of pred stands under element i % plane of the mask.
struct Mask {
  const float* data;
  std::int64_t plane;
  f32v apply(f32v x, std::int64_t i, std::int64_t n) const {
    const std::int64_t first = i % plane;
    if (first + n <= plane) return x * read<DType::f32>(data + first, n);
    for (std::int64_t k = 0; k < n; ++k) x[k] *= data[(first + k) % plane];
    return x;
  }
};

struct NoGradient {
  void store(std::int64_t, f32v, std::int64_t) const {}
};
template <DType D>
struct Gradient {
  Element<D>* dpred;
  float weight;
  void store(std::int64_t i, f32v slope, std::int64_t n) const {
    write<D>(dpred + i, slope * weight, n);
  }
};

template <DType P, class Rho, class Masking, class Store>
void add_loss(const FlowLoss& a, double weight, const Rho& rho, const Masking& mask,
              const Store& gradient, ThreadPool& pool) {
  const auto* pred = reinterpret_cast<const Element<P>*>(a.pred.data);
  const auto* target = reinterpret_cast<const float*>(a.target.data);
  auto* loss = reinterpret_cast<double*>(a.loss.data);
  add_ordered(pool, a.pred.shape.elements(), loss, [&](std::int64_t begin, std::int64_t end) {
    return weight * product_sum(begin, end, [&](std::int64_t i, std::int64_t n) {
             const f32v e = read<P>(pred + i, n) - read<DType::f32>(target + i, n);
             gradient.store(i, mask.apply(rho.slope(e), i, n), n);
             const Factors f = rho.of(e);
             return Factors{f.a, mask.apply(f.b, i, n)};
           });
  });
}

template <class Rho>
void dispatch(const FlowLoss& a, double weight, double slope, const Rho& rho, ThreadPool& pool) {
  const auto with_gradient = [&](const auto& gradient) {
    with_dtype<DType::f32, DType::bf16>(a.pred.dtype, [&](auto p) {
      constexpr DType P = p;
      if (a.mask.data == nullptr) {
        add_loss<P>(a, weight, rho, NoMask{}, gradient, pool);
      } else {
        const Mask mask = {reinterpret_cast<const float*>(a.mask.data), a.mask.shape.elements()};
        add_loss<P>(a, weight, rho, mask, gradient, pool);
      }
    });
  };
  if (a.dpred.data == nullptr) {
    with_gradient(NoGradient{});
    return;
  }
  with_dtype<DType::f32, DType::bf16>(a.dpred.dtype, [&](auto d) {
    constexpr DType D = d;
    with_gradient(
        Gradient<D>{reinterpret_cast<Element<D>*>(a.dpred.data), static_cast<float>(slope)});
  });
}

}  // namespace

void flow_loss(const FlowLoss& a, ThreadPool& pool) {
  const double weight =
      a.sample_weight.data == nullptr
          ? a.weight
          : a.weight * static_cast<double>(*reinterpret_cast<const float*>(a.sample_weight.data));
  if (a.rho.kind == LossKind::mse) {
    dispatch(a, weight, 2 * weight, Square{}, pool);
    return;
  }
  // smooth-L1 is Huber's function over its delta.
  const double scaled = a.rho.kind == LossKind::smooth_l1 ? weight / a.rho.delta : weight;
  dispatch(a, scaled, scaled, Huber{static_cast<float>(a.rho.delta)}, pool);
}

}  // namespace ballast::ops::cpu::BALLAST_ISA
