#include "infer/finite_output.h"

#include "core/error.h"
#include "core/non_finite.h"
#include "core/to_size.h"

namespace ballast::infer {

void require_finite(std::span<const float> values, std::string_view what) {
  const auto bad = first_non_finite(std::as_bytes(values), DType::f32);
  if (!bad) return;
  fail(ErrorCode::input,
       fmt::format("{} holds {} at element {}: nothing is written from it", what,
                   values[to_size(*bad)], *bad),
       {{"ballast inspect of the model, VAE, text encoder and LoRA files that were used",
         "a damaged file or an overtrained LoRA gives such numbers"}});
}

}  // namespace ballast::infer
