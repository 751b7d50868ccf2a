#include "ops/flow_loss_cuda.h"
#include "ops/kernels/elementwise_cuda.cuh"
#include "ops/kernels/ordered_sum_cuda.cuh"

namespace ballast::ops::cuda {
namespace {

template <class P>
struct LossTerm {
  const P* pred;
  const float *target, *mask, *sample_weight;
  std::int64_t plane;  // elements of the mask
  bool huber;
  float delta;
  double weight, over;
  void* dpred;
  bool dpred_is_f32;

  struct Item {
    float pred, target, mask;
  };
  struct Thread {
    LossTerm t;
    double weight;
    float slope_weight;

    __device__ Item load(std::int64_t i) const {
      return {to_float(t.pred[i]), t.target[i], t.mask != nullptr ? t.mask[i % t.plane] : 1.0f};
    }
    __device__ double add(const Item& x, std::int64_t i, double sum) const {
      const float e = sub(x.pred, x.target);
      float a = e, b = e, slope = e;  // half the slope of e^2: the 2 is in the weight
      if (t.huber) {
        // With c = min(|e|, delta), both branches are c (|e| - c / 2). NaN stays NaN.
        const float size = fabsf(e);
        a = size > t.delta ? t.delta : size;
        b = sub(size, mul(a, 0.5f));
        slope = e > t.delta ? t.delta : e;
        slope = slope < -t.delta ? -t.delta : slope;
      }
      if (t.dpred != nullptr) {
        const float g = mul(mul(slope, x.mask), slope_weight);
        if (t.dpred_is_f32) {
          static_cast<float*>(t.dpred)[i] = g;
        } else {
          static_cast<bf16*>(t.dpred)[i] = from_float<bf16>(g);
        }
      }
      return add_product(a, mul(b, x.mask), sum);
    }
    __device__ double finish(double sum) const { return weight * sum; }
  };
  __device__ Thread begin() const {
    double w = weight;
    if (sample_weight != nullptr) w *= static_cast<double>(*sample_weight);
    w /= over;
    return {*this, w, static_cast<float>(huber ? w : 2 * w)};
  }
};

}  // namespace

void flow_loss(const FlowLoss& a, void* stream) {
  with_activation(a.pred.dtype, [&](auto p) {
    using P = typename decltype(p)::type;
    LossTerm<P> term = {};
    term.pred = static_cast<const P*>(a.pred.data);
    term.target = static_cast<const float*>(a.target.data);
    term.mask = static_cast<const float*>(a.mask.data);
    term.sample_weight = static_cast<const float*>(a.sample_weight.data);
    term.plane = a.mask ? a.mask.elements() : 1;
    term.huber = a.huber;
    term.delta = static_cast<float>(a.delta);
    term.weight = a.weight;
    term.over = a.over;
    term.dpred = a.dpred.data;
    term.dpred_is_f32 = a.dpred.dtype == DType::f32;
    add_ordered(term, a.pred.elements(), static_cast<double*>(a.loss.data), a.scratch, stream,
                "flow_loss");
  });
}

}  // namespace ballast::ops::cuda
