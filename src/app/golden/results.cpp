#include "app/golden/results.h"

#include <array>

#include "memory/gpu.h"
#include "memory/machine.h"

namespace ballast {
namespace {

constexpr std::array kCases = std::to_array<GoldenCase>({
    {"dit_forward", recompute_dit, true},
    {"dit_grad", recompute_dit, true},
    {"dit_lora", recompute_dit, true},
    {"dtypes", recompute_dtypes, false},
    {"flow_matching", recompute_flow_matching, false},
    {"half_formats", recompute_half_formats, false},
    {"optimizer", recompute_optimizer, false},
    {"pipeline", recompute_pipeline, true},
    {"samplers", recompute_samplers, false},
    {"t5_hf", recompute_t5_hf, true},
    {"t5_seq2seq", recompute_t5_seq2seq, true},
    {"umt5_encoder", recompute_umt5_encoder, true},
    {"umt5_hf", recompute_umt5_hf, true},
    {"vae", recompute_vae, true},
});

}  // namespace

int thread_count(const VerifyOptions& options) {
  return options.threads > 0 ? options.threads : usable_cpus(read_machine());
}

Backend verify_backend(const VerifyOptions& options) {
  if (options.device == Device::cpu) return {.threads = thread_count(options)};
  return {.device = Device::cuda, .sm = open_gpu().sm};
}

std::span<const GoldenCase> golden_cases() { return kCases; }

const GoldenCase* find_golden_case(std::string_view name) {
  for (const GoldenCase& c : kCases) {
    if (c.name == name) return &c;
  }
  return nullptr;
}

}  // namespace ballast
