#pragma once

#include "core/tensor.h"
#include "plan/program_builder.h"

namespace ballast::ops {

// The K modulation vectors of T timesteps: m[k, t, :] = modulation[k, :] + e[t, k, :].
// e is [T, K*C] (a block's e0, row k of timestep t at columns kC ... kC+C-1), or with shared_e [T,
// C] and the same for every k (the head). One row per distinct timestep, never one per token.
struct ModulationTable {
  ConstTensorView modulation;  // [K, C] or [1, K, C]; f32, bf16 or f16
  ConstTensorView e;           // f32
  TensorView m;                // [K, T, C] f32
  bool shared_e = false;
};
void modulation_table(const ModulationTable& a, Stream stream);

// de[t, k, :] += dm[k, t, :], with shared_e de[t, :] += dm[0, t, :] ... dm[K-1, t, :] in this
// order; dmodulation[k, :] += dm[k, 0, :] ... dm[k, T-1, :] in this order, each added to what is
// there: the same bits whether timesteps come in one call or one after the other.
struct ModulationTableBackward {
  ConstTensorView dm;      // [K, T, C] f32
  TensorView de;           // [T, K*C] or [T, C] f32; optional
  TensorView dmodulation;  // [K, C] or [1, K, C] f32; optional
  bool shared_e = false;
};
void modulation_table_backward(const ModulationTableBackward& a, Stream stream);

Buffer modulation_table(ProgramBuilder& pb, Buffer modulation, Buffer e, std::int64_t rows,
                        bool shared_e);  // [rows, T, C] f32; rows is K
void modulation_table_backward(ProgramBuilder& pb, Buffer dm, bool shared_e, Buffer de,
                               Buffer dmodulation);

}  // namespace ballast::ops
