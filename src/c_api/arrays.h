#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ballast/ballast.h"
#include "ballast/ballast_c.h"

namespace ballast::c_api {

// Arrays of callers. All fail with ErrorCode::input and say what was given: only rows behind rows
// in memory of the CPU are taken, of f32, f16 or bf16. `what` names the array.

// rank: how many dimensions it has.
void check_array(const DLTensor& array, std::string_view what, int rank);
v1::Array array_of(const DLTensor& array, std::string_view what, int rank);
v1::MutableArray mutable_array_of(const DLTensor& array, std::string_view what, int rank);

// The f32 values of an array that is of that type, in place.
std::span<float> floats_of(const DLTensor& array, std::string_view what, int rank);

void require_shape(const DLTensor& array, std::string_view what,
                   std::span<const std::int64_t> expected);

v1::ArraySample sample_of(const ballast_sample& sample);

}  // namespace ballast::c_api
