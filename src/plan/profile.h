#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/bytes.h"
#include "plan/program.h"

namespace ballast {

// How fast a machine is, for predicting time. Rates are per second, sustained, not from data sheets
// where they could be measured.
struct MachineProfile {
  std::string name;
  std::string description;
  Device device = Device::cpu;
  int sm = 90;                 // compute capability of a GPU, 90 is 9.0
  double gemm_flops = 0;       // matrix products in the compute dtype
  double f32_gemm_flops = 0;   // of a GPU, of f32 operands without TF32; 0: not measured
  double fp8_gemm_flops = 0;   // of f8_e4m3 operands; 0: not measured
  double attention_flops = 0;  // fused attention, forward
  double attention_backward_flops = 0;
  double memory_bandwidth = 0;  // bytes read plus written, device memory
  double upload_bandwidth = 0;  // host to device
  double download_bandwidth = 0;
  double both_ways_bandwidth = 0;  // of both at once, together; 0: not measured
  double disk_bandwidth = 0;
  double disk_write_bandwidth = 0;  // 0: not measured, that of reads is taken
  double launch_seconds = 0;        // fixed cost of one compute instruction
  // Of a product too small to fill a GPU, for each element of its contraction, which one
  // multiprocessor walks along; 0: not measured.
  double product_step_seconds = 0;
  double product_seconds = 0;    // fixed cost of such a product; 0: not measured, launch_seconds
  double attention_seconds = 0;  // ... of attention, and of its backward
  double attention_backward_seconds = 0;
  // Of the processors beside a GPU, for what the host lane computes; of 16 of them.
  double host_gemm_flops = 0.5e12;
  double host_attention_flops = 0.4e12;
  double host_memory_bandwidth = 1e11;
  // Between ranks: bytes that one of them sends, and what an exchange takes beside them. Of ranks
  // on one host (default: through its RAM), and between hosts (default: 25 Gbit/s Ethernet).
  double peer_bandwidth = 1e10;
  double peer_seconds = 20e-6;
  double network_bandwidth = 3.1e9;
  double network_seconds = 30e-6;
  Bytes device_memory;   // of a GPU, for runs without a budget
  Bytes library_bytes;   // CUDA context, cuBLAS and cuDNN handles on the device
  bool estimate = true;  // not measured by us on that machine
};

inline constexpr std::string_view kThisMachine = "this";
// Whether a plan takes the RAM of this machine for that of another.
inline bool borrows_ram(const MachineProfile& planned_for, bool ram_given) {
  return planned_for.name != kThisMachine && !ram_given;
}

// The description, and whether its rates are estimates: a machine's line in plans.
std::string machine_text(const MachineProfile& profile);

// Matrix products of f8_e4m3 and of f32: as measured, else the H200's ratio to those of bf16.
double fp8_gemm_flops(const MachineProfile& profile);
double f32_gemm_flops(const MachineProfile& profile);

// The machines that can be planned for without being there (--target).
std::span<const MachineProfile> bundled_profiles();
std::string bundled_names();  // "h200, a100, ..."
std::optional<MachineProfile> find_profile(std::string_view name);

// Rates for a GPU that was not measured: those of the bundled one in its name ("NVIDIA GeForce RTX
// 4090"), else of the one with the nearest compute capability.
MachineProfile nearest_profile(std::string_view gpu, int sm);
// Rates of so many threads of the CPU backend: order of magnitude only, from clock and lanes, until
// `ballast bench machine` has measured them.
MachineProfile cpu_profile(int threads);

// Whether the host lane computes, which on a GPU backend it mostly does not: work of a model that
// the processors do (models/student/pair.h).
bool computes_on_host(const ProgramSet& set);

// What an instruction reads and writes, each operand once.
double moved_bytes(const ProgramSet& set, const Instruction& ins);

// Seconds one instruction keeps its lane busy.
double predicted_seconds(const ProgramSet& set, const Instruction& ins,
                         const MachineProfile& profile);

}  // namespace ballast
