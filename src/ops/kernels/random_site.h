#pragma once

#include <cstdint>
#include <string_view>

#include "core/random.h"
#include "plan/bindings.h"

namespace ballast::ops {

// Where a program uses random numbers for one of its samples. The numbers depend on the run's seed,
// the stream ("noise", "dropout"), the optimizer step, the site (a tensor's name) and the sample's
// index within the step, first_sample of the run plus its index within the program: the same sample
// gets the same numbers however a step is split into micro-batches.
struct RandomSite {
  std::uint32_t stream = 0;
  std::uint64_t site = 0;
  std::int64_t sample = 0;  // within the program

  // The key's site word is fold(hash of the name + index of the sample).
  RandomSource at(const StepValues& s) const {
    return {.seed = fold(s.seed),
            .stream = stream,
            .step = static_cast<std::uint32_t>(s.step),
            .site = fold(site + static_cast<std::uint64_t>(s.first_sample + sample))};
  }
};

constexpr RandomSite random_site(std::string_view stream, std::string_view site,
                                 std::int64_t sample) {
  return {.stream = fold(hash_of(stream)), .site = hash_of(site), .sample = sample};
}

}  // namespace ballast::ops
