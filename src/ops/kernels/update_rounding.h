#pragma once

#include <cstdint>

#include "core/random.h"
#include "core/tensor.h"
#include "plan/bindings.h"
#include "plan/program.h"

namespace ballast {

// How a narrow parameter (bf16) takes an update that is finer than its steps. An f32 parameter is
// always rounded to nearest.
enum class UpdateRounding : std::uint8_t {
  nearest,
  kahan,       // what was rounded away is carried to the next step, in the parameter's dtype
  stochastic,  // up or down at random, right on average (core/simd_random.h)
};

}  // namespace ballast

namespace ballast::ops {

// What an op needs to write the parameter p it updates.
struct ParameterRounding {
  UpdateRounding rounding = UpdateRounding::nearest;
  TensorView carry = {};           // kahan: as large as p, of its dtype
  RandomSource random = {};        // stochastic: element i of p takes word first_element + i, with
                                   // 8-bit moments half a word (RandomSource::half)
  std::int64_t first_element = 0;  // where p begins in the tensor it was cut from
};

// The same in a recorded program; step and seed of the random words are those of b.step().
struct RecordedRounding {
  UpdateRounding rounding = UpdateRounding::nearest;
  Buffer carry = {};
  std::uint32_t site = 0;  // fold(hash_of(name of the tensor))
  std::int64_t first_element = 0;
};
ParameterRounding bind(const Bindings& b, const RecordedRounding& r);

// p is f32 or bf16 and contiguous, the carry fits it.
void check_parameter(const char* op, const ConstTensorView& p, const ParameterRounding& r);
// A contiguous operand with as many elements as p, f32 or bf16.
void check_beside_parameter(const char* op, const char* name, const ConstTensorView& t,
                            const ConstTensorView& p);
// The clipping factor: absent, or [1] f32.
void check_grad_scale(const char* op, const ConstTensorView& t);

}  // namespace ballast::ops
