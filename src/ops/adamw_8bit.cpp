#include "ops/adamw_8bit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "core/simd.h"
#include "ops/adamw_8bit_cuda.h"
#include "ops/kernels/cuda_call.h"
#include "ops/kernels/on_device.h"
#include "ops/kernels/ordered_sum_call.h"
#include "ops/kernels/update_rounding_call.h"
#include "plan/bindings.h"

namespace ballast::ops {

namespace cpu {
BALLAST_PER_ISA(void adamw_8bit(const AdamW8bit& a, const DynamicMap& m_map,
                                const DynamicMap& v_map, ThreadPool& pool))
}

namespace {

void check_moment(const char* name, const ConstTensorView& t, const ConstTensorView& absmax,
                  const ConstTensorView& p) {
  const bool codes = t.dtype == DType::u8;
  check((codes || t.dtype == DType::f32) && t.elements() == p.elements() && t.contiguous(),
        "adamw_8bit: {} is {} {}, p is {} {}", name, t.dtype, t.shape, p.dtype, p.shape);
  if (!codes || p.elements() == 0) return;
  const std::int64_t blocks = (p.elements() + kStateBlock - 1) / kStateBlock;
  check(absmax && absmax.dtype == DType::f32 && absmax.elements() == blocks && absmax.contiguous(),
        "adamw_8bit: absmax of {} is {} {}, expected f32 [{}]", name, absmax.dtype, absmax.shape,
        blocks);
}

cuda::AdamW8bit adamw_8bit_on_gpu(const AdamW8bit& a, Stream stream) {
  const AdamWOptions& o = a.options;
  const double k = static_cast<double>(a.step);
  const double k1 = 1 - std::pow(o.beta1, k), k2 = std::sqrt(1 - std::pow(o.beta2, k));
  return {.p = a.p,
          .m = a.m,
          .v = a.v,
          .m_absmax = a.m_absmax,
          .v_absmax = a.v_absmax,
          .shift = a.shift,
          .g = a.g,
          .grad_scale = a.grad_scale,
          .keep_m = static_cast<float>(o.beta1),
          .add_m = static_cast<float>(1 - o.beta1),
          .keep_v = static_cast<float>(o.beta2),
          .add_v = static_cast<float>(1 - o.beta2),
          .eps = static_cast<float>(k2 * o.eps),
          .decays = o.weight_decay > 0,
          .stabilize = a.stabilize,
          .learning_rate = a.learning_rate,
          .weight_decay = o.weight_decay,
          .k1 = k1,
          .k2 = k2,
          .floor = o.eps * o.eps,
          .scratch = a.stabilize ? sum_scratch(stream) : nullptr,
          .rounding = cuda::rounding(a.rounding)};
}

void check_adamw_8bit(const AdamW8bit& a) {
  check_parameter("adamw_8bit", a.p, a.rounding);
  check_moment("m", a.m, a.m_absmax, a.p);
  check_moment("v", a.v, a.v_absmax, a.p);
  check(a.m.dtype == a.v.dtype, "adamw_8bit: m is {}, v is {}", a.m.dtype, a.v.dtype);
  if (a.shift) {
    check(
        a.shift.dtype == a.p.dtype && a.shift.elements() == a.p.elements() && a.shift.contiguous(),
        "adamw_8bit: shift is {} {}, p is {} {}", a.shift.dtype, a.shift.shape, a.p.dtype,
        a.p.shape);
  }
  check_beside_parameter("adamw_8bit", "g", a.g, a.p);
  check_grad_scale("adamw_8bit", a.grad_scale);
  check(a.step >= 1, "adamw_8bit: steps count from 1, this is step {}", a.step);
}

// What a launch has for all of its tensors.
bool can_batch(const AdamW8bit& a, const AdamW8bit& b) {
  return a.p.device == b.p.device && a.p.dtype == b.p.dtype && a.g.dtype == b.g.dtype &&
         a.grad_scale.data == b.grad_scale.data && a.step == b.step &&
         a.rounding.rounding == b.rounding.rounding &&
         a.rounding.random.seed == b.rounding.random.seed &&
         a.rounding.random.stream == b.rounding.random.stream &&
         a.options.beta1 == b.options.beta1 && a.options.beta2 == b.options.beta2 &&
         a.options.eps == b.options.eps;
}

}  // namespace

void adamw_8bit(const AdamW8bit& a, Stream stream) { adamw_8bit({&a, 1}, stream); }

void adamw_8bit(std::span<const AdamW8bit> tensors, Stream stream) {
  if (tensors.empty()) return;
  check(tensors.size() <= kAdamWTensors, "adamw_8bit: {} tensors in one call", tensors.size());
  for (const AdamW8bit& a : tensors) {
    check_adamw_8bit(a);
    check(can_batch(a, tensors[0]), "adamw_8bit: {} {} and {} {} do not go together", a.p.dtype,
          a.p.shape, tensors[0].p.dtype, tensors[0].p.shape);
    check(!a.stabilize || tensors.size() == 1, "adamw_8bit: {} tensors are stabilized together",
          tensors.size());
  }
  on_device(
      tensors[0].p.device,
      [&] {
        for (const AdamW8bit& a : tensors) {
          BALLAST_ISA_CALL(cpu, adamw_8bit, a, signed_map(), unsigned_map(), *stream.pool);
        }
      },
      [&] {
        std::array<cuda::AdamW8bit, kAdamWTensors> all;
        std::ranges::transform(tensors, all.begin(),
                               [&](const AdamW8bit& a) { return adamw_8bit_on_gpu(a, stream); });
        cuda::adamw_8bit(all.data(), static_cast<int>(tensors.size()),
                         cuda::state_tables(*stream.queue), stream.native);
      });
}

void adamw_8bit(ProgramBuilder& pb, std::vector<AdamW8bitBuffers> tensors, Buffer grad_scale,
                bool stabilize) {
  check(tensors.size() <= kAdamWTensors, "adamw_8bit: {} tensors in one call", tensors.size());
  Access access;
  for (const AdamW8bitBuffers& t : tensors) {
    const Buffer scale = &t == &tensors.front() ? grad_scale : Buffer();
    access.reads.append(
        {t.p, t.m, t.m_absmax, t.v, t.v_absmax, t.shift, t.g, scale, t.rounding.carry});
    access.writes.append({t.p, t.m, t.m_absmax, t.v, t.v_absmax, t.shift, t.rounding.carry});
  }
  const Buffer workspace = stabilize ? sum_workspace(pb, tensors.front().p) : Buffer();
  access.scratch = workspace;
  pb.emit(
      "adamw_8bit", std::move(access),
      [tensors = std::move(tensors), grad_scale, stabilize, workspace](const Bindings& b) {
        std::array<AdamW8bit, kAdamWTensors> all;
        std::ranges::transform(tensors, all.begin(), [&](const AdamW8bitBuffers& t) {
          return AdamW8bit{.p = b.out(t.p),
                           .m = b.out(t.m),
                           .v = b.out(t.v),
                           .m_absmax = b.out_if(t.m_absmax),
                           .v_absmax = b.out_if(t.v_absmax),
                           .shift = b.out_if(t.shift),
                           .g = b.in(t.g),
                           .grad_scale = b.in_if(grad_scale),
                           .options = t.options,
                           .stabilize = stabilize,
                           .step = b.step().step,
                           .learning_rate = t.options.rate * b.step().learning_rate,
                           .rounding = bind(b, t.rounding)};
        });
        adamw_8bit({all.data(), tensors.size()}, stream_with(b, workspace));
      },
      [](const Bindings& b) {
        on_device(
            Device::cuda, [] {}, [&] { cuda::state_tables(*b.stream().queue); });
      });
}

}  // namespace ballast::ops
