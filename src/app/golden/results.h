#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "app/golden/file.h"
#include "core/device.h"
#include "nn/memory_policy.h"
#include "plan/program.h"

namespace ballast {

struct VerifyOptions {
  Device device = Device::cpu;
  DType dtype = DType::f32;  // of the computation: f32 or bf16
  MemoryPolicy policy;
  bool fp8_matmul = false;  // products of blocks in fp8
  int threads = 0;          // 0: all this process may use
};

// Computes the results of a golden file from its weights, inputs and config alone; never reads the
// stored results. The tensors have the names, dtypes and shapes of the stored ones.
using Recompute = std::vector<GoldenTensor> (*)(const GoldenFile& file,
                                                const VerifyOptions& options);

std::vector<GoldenTensor> recompute_half_formats(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_dtypes(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_optimizer(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_flow_matching(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_samplers(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_pipeline(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_dit(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_vae(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_t5_seq2seq(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_t5_hf(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_umt5_encoder(const GoldenFile&, const VerifyOptions&);
std::vector<GoldenTensor> recompute_umt5_hf(const GoldenFile&, const VerifyOptions&);

struct GoldenCase {
  std::string_view name;  // metadata "case"
  Recompute recompute;
  bool network;  // a network runs: dtype and policy matter. Else they are all one
};

// Threads to compute with: options.threads, or as many as this process can run at once.
int thread_count(const VerifyOptions& options);

// What programs are recorded for; opens the GPU when that is asked for.
Backend verify_backend(const VerifyOptions& options);

// Every case this version can recompute.
std::span<const GoldenCase> golden_cases();
const GoldenCase* find_golden_case(std::string_view name);

}  // namespace ballast
