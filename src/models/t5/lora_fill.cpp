// The factors of an adapter on their way into a job; lora_file.cpp reads and checks what there is.

#include <algorithm>

#include "core/error.h"
#include "core/to_size.h"
#include "models/t5/lora_file.h"

namespace ballast::t5 {

void LoraFile::fill(std::span<const AdapterIo> adapters, Runner& runner) const {
  for (const AdapterIo& io : adapters) {
    const auto m = std::ranges::find(modules_, io.name, &Module::name);
    check(m != modules_.end(), "{} is no adapter of {}", io.name, checkpoint_.path());
    std::vector<float> a = checkpoint_.floats(*m->a);
    a.resize(to_size(runner.view(io.a).elements()), 0);  // rows below
    runner.write(io.a, std::as_bytes(std::span(a)));
    std::vector<float> b = checkpoint_.floats(*m->b);
    if (m->rank != rank_) {  // columns beside, and a scale of its own
      const auto factor = static_cast<float>(scale_of(m->rank) / scale_of(rank_));
      std::vector<float> wide(to_size(runner.view(io.b).elements()), 0);
      for (std::size_t i = 0; i < b.size(); ++i) {
        const auto own = to_size(m->rank);
        wide[i / own * to_size(rank_) + i % own] = b[i] * factor;
      }
      b = std::move(wide);
    }
    runner.write(io.b, std::as_bytes(std::span(b)));
  }
}

}  // namespace ballast::t5
