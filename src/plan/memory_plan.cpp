#include "plan/memory_plan.h"

#include <algorithm>

#include "core/error.h"
#include "plan/offsets.h"
#include "plan/packing.h"
#include "plan/phase.h"

namespace ballast {
namespace {

// Ids between which the temporaries of one program are: they are recorded one program after
// another.
struct IdRange {
  std::uint32_t first = 0, end = 0;
};

// Who belongs where, found in one pass: buffers are many, and programs may be.
struct Owners {
  std::vector<std::uint32_t> persistent;           // roots
  std::vector<std::vector<std::uint32_t>> phases;  // roots of what each keeps
  std::vector<IdRange> by_program;
  std::vector<int> phase;  // by program; kNoPhase: none
};
constexpr int kNoPhase = -1;

// A program is of the phase whose buffers it touches.
void find_phases(const ProgramSet& set, Owners& o) {
  o.phase.assign(set.programs.size(), kNoPhase);
  if (o.phases.empty()) return;
  for (std::size_t p = 0; p < set.programs.size(); ++p) {
    const auto touch = [&](const Instruction& ins, Buffer b) {
      const BufferSpec& s = set.spec(b);
      if (!belongs_to_phase(s)) return;
      const int phase = phase_of(s);
      check(o.phase[p] == kNoPhase || o.phase[p] == phase,
            "{} of program {} touches {}, which another phase keeps", ins.name,
            set.programs[p].name, set.name(b));
      o.phase[p] = phase;
    };
    for (const Instruction& ins : set.programs[p].instructions) {
      for (const Buffer b : ins.reads) touch(ins, b);
      for (const Buffer b : ins.writes) touch(ins, b);
    }
  }
}

Owners owners(const ProgramSet& set) {
  Owners o;
  o.by_program.resize(set.programs.size());
  for (std::uint32_t i = 0; i < set.buffers.size(); ++i) {
    const BufferSpec& s = set.buffers[i];
    if (s.program == kPersistent) {
      if (s.root.id == i) o.persistent.push_back(i);
      continue;
    }
    if (belongs_to_phase(s)) {
      const auto phase = to_size(phase_of(s));
      if (o.phases.size() <= phase) o.phases.resize(phase + 1);
      if (s.root.id == i) o.phases[phase].push_back(i);
      continue;
    }
    IdRange& range = o.by_program[to_size(s.program)];
    if (range.end == 0) range.first = i;
    range.end = i + 1;
  }
  find_phases(set, o);
  return o;
}

using Tops = std::array<Bytes, kTiers.size()>;

// Lays buffers that stay out one after another, from `tops` on; widest alignment first wastes
// nothing between.
void place_kept(const ProgramSet& set, std::vector<std::uint32_t> order, MemoryPlan& plan,
                Tops& tops) {
  std::ranges::stable_sort(order, std::greater(),
                           [&](std::uint32_t i) { return set.buffers[i].alignment; });
  for (const std::uint32_t i : order) {
    const BufferSpec& s = set.buffers[i];
    Bytes& top = tops[to_size(s.tier)];
    plan.offset[i] = round_up(top.count, s.alignment);
    if (s.bytes > 0) top = {plan.offset[i] + s.bytes + plan.guard_bytes};
  }
}

// What the run keeps lies at the bottom, what each phase keeps above it. By program: where its
// temporaries begin.
std::vector<Tops> place_all_kept(const ProgramSet& set, const Owners& owned, MemoryPlan& plan) {
  place_kept(set, owned.persistent, plan, plan.persistent);
  std::vector<Tops> phases(owned.phases.size(), plan.persistent);
  for (std::size_t f = 0; f < phases.size(); ++f) {
    place_kept(set, owned.phases[f], plan, phases[f]);
  }
  std::vector<Tops> by_program;
  for (const int phase : owned.phase) {
    by_program.push_back(phase == kNoPhase ? plan.persistent : phases[to_size(phase)]);
  }
  return by_program;
}

// visit(id, spec, lifetime) of what the program itself has for temporaries.
template <class Visit>
void each_temporary(const ProgramSet& set, const std::vector<Lifetime>& life, int program,
                    IdRange range, Visit&& visit) {
  for (std::uint32_t i = range.first; i < range.end; ++i) {
    if (life[i].first == Lifetime::kNever) continue;  // lifetimes are the roots' only
    const BufferSpec& s = set.buffers[i];
    if (s.program == program && s.bytes > 0) visit(i, s, life[i]);
  }
}

struct Temporaries {
  std::vector<std::uint32_t> ids;
  std::vector<PackItem> items;
};

// By tier.
std::array<Temporaries, kTiers.size()> temporaries(const ProgramSet& set,
                                                   const std::vector<Lifetime>& life, int program,
                                                   IdRange range, std::uint64_t guard_bytes) {
  std::array<Temporaries, kTiers.size()> all;
  each_temporary(set, life, program, range,
                 [&](std::uint32_t i, const BufferSpec& s, const Lifetime& l) {
                   Temporaries& t = all[to_size(s.tier)];
                   t.ids.push_back(i);
                   t.items.push_back({l.first, l.last, s.bytes + guard_bytes, s.alignment});
                 });
  return all;
}

// The instruction at which most bytes are alive, and what they are for.
void describe_peak(const ProgramSet& set, const Program& p, const Temporaries& t, TierUse& use) {
  if (t.items.empty()) return;
  std::vector<std::int64_t> change(p.instructions.size() + 1, 0);
  for (const PackItem& i : t.items) {
    change[i.first] += static_cast<std::int64_t>(i.bytes);
    change[i.last + 1] -= static_cast<std::int64_t>(i.bytes);
  }
  std::int64_t live = 0, most = -1;
  std::uint32_t at = 0;
  for (std::uint32_t i = 0; i < p.instructions.size(); ++i) {
    live += change[i];
    if (live > most) most = live, at = i;
  }
  use.at = p.instructions[at].name;
  for (std::size_t i = 0; i < t.items.size(); ++i) {
    if (t.items[i].first > at || t.items[i].last < at) continue;
    use.roles[to_size(set.buffers[t.ids[i]].role)] += {t.items[i].bytes};
  }
}

using RolesByTier = std::array<BytesByRole, kTiers.size()>;

void add_roles(const ProgramSet& set, const std::vector<std::uint32_t>& kept, RolesByTier& roles) {
  for (const std::uint32_t i : kept) {
    const BufferSpec& s = set.buffers[i];
    roles[to_size(s.tier)][to_size(s.role)] += {s.bytes};
  }
}

}  // namespace

MemoryPlan plan_offsets(const ProgramSet& set, const PlanOptions& options) {
  MemoryPlan plan;
  plan.guard_bytes = options.guard_bytes;
  plan.offset.resize(set.buffers.size());
  const Owners owned = owners(set);
  const std::vector<Tops> kept = place_all_kept(set, owned, plan);
  plan.peak = plan.persistent;
  RolesByTier always{};
  add_roles(set, owned.persistent, always);
  struct Packed {
    std::vector<PackItem> items;
    Packing packing;
  };
  std::array<Packed, kTiers.size()> last;  // the step of a second expert packs as the first one's
  std::vector<Lifetime> life;
  for (int p = 0; p < static_cast<int>(set.programs.size()); ++p) {
    const Program& program = set.programs[to_size(p)];
    ProgramUse& use = plan.programs.emplace_back();
    use.name = program.name;
    lifetimes(set, p, life);
    const auto by_tier =
        temporaries(set, life, p, owned.by_program[to_size(p)], options.guard_bytes);
    RolesByTier roles = always;
    if (const int phase = owned.phase[to_size(p)]; phase != kNoPhase) {
      add_roles(set, owned.phases[to_size(phase)], roles);
    }
    for (const Tier tier : kTiers) {
      const Temporaries& t = by_tier[to_size(tier)];
      if (last[to_size(tier)].items != t.items) last[to_size(tier)] = {t.items, pack(t.items)};
      const Packing& packing = last[to_size(tier)].packing;
      const Bytes stays = kept[to_size(p)][to_size(tier)];
      std::uint64_t alignment = 1;
      for (const PackItem& i : t.items) alignment = std::max(alignment, i.alignment);
      const std::uint64_t base = round_up(stays.count, alignment);
      for (std::size_t i = 0; i < t.ids.size(); ++i) {
        plan.offset[t.ids[i]] = base + packing.offset[i];
      }
      TierUse& tier_use = use.tiers[to_size(tier)];
      tier_use.peak = t.items.empty() ? stays : Bytes{base + packing.peak};
      tier_use.lower_bound = t.items.empty() ? stays : Bytes{base + packing.lower_bound};
      tier_use.roles = roles[to_size(tier)];
      describe_peak(set, program, t, tier_use);
      plan.peak[to_size(tier)] = std::max(plan.peak[to_size(tier)], tier_use.peak);
    }
  }
  return plan;
}

void plan_waits(const ProgramSet& set, MemoryPlan& plan) {
  plan.waits = derive_waits(set, plan.offset);
}

MemoryPlan plan_memory(const ProgramSet& set, const PlanOptions& options) {
  MemoryPlan plan = plan_offsets(set, options);
  plan_waits(set, plan);
  for (int p = 0; p < static_cast<int>(set.programs.size()); ++p) {
    plan.lifetimes.push_back(lifetimes(set, p));
  }
  return plan;
}

std::array<Bytes, kTiers.size()> live_bytes(const ProgramSet& set) {
  MemoryPlan plan;
  plan.offset.resize(set.buffers.size());
  const Owners owned = owners(set);
  const std::vector<Tops> kept = place_all_kept(set, owned, plan);
  std::array<Bytes, kTiers.size()> most = plan.persistent;
  std::vector<Lifetime> life;
  std::array<std::vector<std::int64_t>, kTiers.size()> change;  // by instruction
  for (int p = 0; p < static_cast<int>(set.programs.size()); ++p) {
    const auto program = to_size(p);
    lifetimes(set, p, life);
    for (auto& c : change) c.assign(set.programs[program].instructions.size() + 1, 0);
    each_temporary(set, life, p, owned.by_program[program],
                   [&](std::uint32_t, const BufferSpec& s, const Lifetime& l) {
                     change[to_size(s.tier)][l.first] += static_cast<std::int64_t>(s.bytes);
                     change[to_size(s.tier)][l.last + 1] -= static_cast<std::int64_t>(s.bytes);
                   });
    for (const Tier tier : kTiers) {
      std::int64_t live = 0, peak = 0;
      for (const std::int64_t c : change[to_size(tier)]) peak = std::max(peak, live += c);
      const Bytes stays = kept[program][to_size(tier)];
      most[to_size(tier)] =
          std::max(most[to_size(tier)], stays + Bytes{static_cast<std::uint64_t>(peak)});
    }
  }
  return most;
}

}  // namespace ballast
