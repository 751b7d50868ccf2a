#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/golden/file.h"

namespace ballast {

// How far a computed tensor is from the stored one, by the measure that its rule names.
struct Comparison {
  std::string tensor;
  std::string_view measure;  // "abs", "relative", "rel L2", "median rel L2", "rms", "bits",
                             // "missing"
  double error = 0;          // of "bits": how many elements differ
  double limit = 0;          // infinity: none
  bool pass = false;
  std::string detail = {};  // of a miss: where, and the two values
};

// Every stored result against the computed ones; one that was not computed is a miss. dtype is that
// of the computation. In f32, element by element unless said otherwise:
//   with stats      |ours - stored| <= 20 max(err, 6e-8 max); out.base.* has those of out.*
//   out.adamw.*     losses 1e-5 relative; weights 1e-4 relative L2, and no element off by 1e-3
//   sines, cosines  1e-9, or 1e-6 when ours are f32 numbers
//   out.vae_input   2e-5; of a single frame, resized as 8-bit pixels, one step of them
//   integers, number formats, table look-ups, schedules, masks   every bit; any NaN equals any NaN
//   files of transformers (*_hf)    2e-4 of the largest value; losses 1e-4 relative, adamw 1e-3
// In bf16: out.* 0.015 relative L2 and 0.06 absolute, losses 0.01 absolute, grad.* 0.06 relative L2
// each and 0.02 in the median, mid.* not at all; out.adamw.* follow from gradients and share their
// limit per tensor. Text models (t5, umt5), whose residual stream is bf16, too: 0.06 relative L2.
// For t5_hf no limit is known in bf16; generated tokens are compared in f32 alone.
// VAEs: decoded videos 0.02 in the root mean square (40 dB), no other limit.
// out.guided, a difference of answers times the guidance, has no limit of its own in bf16.
// Without a dtype no limit is known: relative L2 as it is, and only what is not finite misses.
std::vector<Comparison> compare_results(const GoldenFile& file,
                                        std::span<const GoldenTensor> computed,
                                        std::optional<DType> dtype);

// The one nearest to its limit, or furthest beyond it; nullptr when there is none.
const Comparison* worst(std::span<const Comparison> comparisons);

// Whether two computed tensors have the same bits where they count.
bool same_bits(const GoldenTensor& a, const GoldenTensor& b);

}  // namespace ballast
