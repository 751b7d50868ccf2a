#include "plan/refusal.h"

#include <algorithm>

namespace ballast {

std::vector<Shortage> shortages(const MemoryPlan& plan, const BytesByTier& needed,
                                const BytesByTier& allowed) {
  std::vector<Shortage> all;
  for (const Tier tier : kTiers) {
    const auto t = static_cast<std::size_t>(tier);
    if (needed[t] <= allowed[t]) continue;
    const auto most = std::ranges::max_element(
        plan.programs, {}, [&](const ProgramUse& p) { return p.tier(tier).peak; });
    all.push_back({.tier = tier,
                   .program = most->name,
                   .at = most->tier(tier).at,
                   .needed = needed[t],
                   .allowed = allowed[t],
                   .roles = most->tier(tier).roles});
  }
  return all;
}

}  // namespace ballast
