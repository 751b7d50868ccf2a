#include "plan/refusal.h"

#include <algorithm>

#include "core/to_size.h"
#include "plan/display_names.h"

namespace ballast {

std::vector<Shortage> shortages(const MemoryPlan& plan, const BytesByTier& needed,
                                const BytesByTier& allowed) {
  std::vector<Shortage> all;
  for (const Tier tier : kTiers) {
    const auto t = to_size(tier);
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

std::string shortage_lines(std::span<const Shortage> all, const Budget& budget, bool shared_ram,
                           std::string_view detail) {
  std::string text, limits;
  for (const Shortage& s : all) {
    const auto& limit = s.tier == Tier::device && !shared_ram ? budget.gpu_limit : budget.ram_limit;
    if (s.tier != Tier::disk && limit && s.needed > limit->most) {
      const std::string line = "\n" + limit_line(*limit);
      if (limits.find(line) == std::string::npos) limits += line;
    }
    text += fmt::format(
        "{}does not fit: {} more {} needed{}", text.empty() ? "" : "\n", s.needed - s.allowed,
        s.tier == Tier::disk ? "disk space" : memory_name(s.tier, shared_ram), detail);
  }
  return text + limits;
}

}  // namespace ballast
