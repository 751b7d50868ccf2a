#include "plan/budget_flag.h"

namespace ballast {
namespace {

std::string lifted(const MemoryLimit& limit, Bytes needed) {
  using Kind = MemoryLimit::Kind;
  switch (limit.kind) {
    case Kind::control_group:  // what others in the group have stays theirs
      return fmt::format("raise {} to {}MB", limit.name,
                         megabytes_for(needed + limit.limit - limit.most));
    case Kind::machine:
      return fmt::format("a machine with {}MB of RAM", megabytes_for(needed));
    case Kind::available:
      return fmt::format("end other programs until {}MB of RAM are available",
                         megabytes_for(needed));
    case Kind::process:
      return limit.name + " unlimited";
    case Kind::gpu:
      return fmt::format("a GPU with {}MB of free memory", megabytes_for(needed));
  }
  return limit.name;
}

}  // namespace

std::string larger_budget(const Budget& budget, Tier tier, std::uint64_t megabytes) {
  const Bytes needed{megabytes * kMegabyte};
  const auto& limit = tier == Tier::host ? budget.ram_limit : budget.gpu_limit;
  if (tier != Tier::disk && limit && needed > limit->most) return lifted(*limit, needed);
  return budget_flag(tier, megabytes);
}

}  // namespace ballast
