#include "plan/live_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/to_size.h"
#include "plan/display_names.h"

namespace ballast {
namespace {

constexpr std::size_t kNamed = 3;  // of the largest buffers, and of the roles with most bytes

std::string held_in(const ProgramSet& set, const std::vector<Lifetime>& life, Tier tier,
                    int program, std::uint32_t instruction) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> buffers;  // bytes, id
  std::vector<std::pair<std::uint64_t, std::size_t>> roles(kRoles);
  for (std::size_t r = 0; r < roles.size(); ++r) roles[r].second = r;
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < set.buffers.size(); ++i) {
    const BufferSpec& s = set.buffers[i];
    if (s.root.id != i || s.tier != tier || s.bytes == 0) continue;
    const bool mine = s.program == program && life[i].first <= instruction &&
                      instruction <= life[i].last;  // kNever is behind every instruction
    if (s.program != kPersistent && !mine) continue;
    sum += s.bytes;
    buffers.emplace_back(s.bytes, i);
    roles[to_size(s.role)].first += s.bytes;
  }
  const std::string_view memory = memory_name(tier, set.backend.device == Device::cpu);
  if (sum == 0) return fmt::format("nothing in {}", memory);
  std::ranges::sort(roles, std::greater());
  std::ranges::stable_sort(buffers, std::greater(),
                           &std::pair<std::uint64_t, std::uint32_t>::first);
  std::string text = fmt::format("{} in {} (", Bytes{sum}, memory);
  for (std::size_t r = 0; r < kNamed && roles[r].first > 0; ++r) {
    text += fmt::format("{}{} {}", r > 0 ? ", " : "",
                        display_name(static_cast<Role>(roles[r].second)), Bytes{roles[r].first});
  }
  for (std::size_t b = 0; b < std::min(kNamed, buffers.size()); ++b) {
    text += fmt::format("{}{} {}", b > 0 ? ", " : "; largest ", set.buffers[buffers[b].second].name,
                        Bytes{buffers[b].first});
  }
  return text + ")";
}

}  // namespace

std::string describe_live_buffers(const ProgramSet& set, const MemoryPlan& plan, int program,
                                  std::uint32_t instruction) {
  const std::vector<Lifetime>& life = plan.lifetimes[to_size(program)];
  return fmt::format("holding {} and {}", held_in(set, life, Tier::device, program, instruction),
                     held_in(set, life, Tier::host, program, instruction));
}

}  // namespace ballast
