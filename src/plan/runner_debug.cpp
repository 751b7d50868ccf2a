#include "plan/runner_debug.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/random_order.h"
#include "core/to_size.h"

namespace ballast {
namespace {

constexpr std::byte kGuard{0xA5};
constexpr std::byte kPoison{0xFF};  // NaN in f64, f32, f16, bf16 and both 8-bit floats

// Elements that are NaN, for the dtypes in which results are kept.
std::int64_t first_nan(const TensorView& t) {
  if (!t.contiguous()) return -1;  // parts of a larger tensor; the whole is looked at elsewhere
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    switch (t.dtype) {
      case DType::f64:
        if (std::isnan(t.as<double>()[i])) return i;
        break;
      case DType::f32:
        if (std::isnan(t.as<float>()[i])) return i;
        break;
      case DType::bf16:
        if ((t.as<std::uint16_t>()[i] & 0x7fff) > 0x7f80) return i;
        break;
      case DType::f16:
        if ((t.as<std::uint16_t>()[i] & 0x7fff) > 0x7c00) return i;
        break;
      default:
        return -1;
    }
  }
  return -1;
}

}  // namespace

OneByOne::OneByOne(const ProgramSet& set, const MemoryPlan& plan, const LaneSchedules& schedules,
                   const ArenaBases& bases, const RunnerDebug& debug)
    : set_(set),
      plan_(plan),
      schedules_(schedules),
      bases_(bases),
      debug_(debug),
      uses_left_(set.buffers.size()) {
  if (debug.check_guards) fill_guards();
}

void OneByOne::run(int program, const std::function<void(std::uint32_t instruction)>& execute) {
  const auto p = to_size(program);
  for (std::size_t b = 0; b < uses_left_.size(); ++b) uses_left_[b] = plan_.lifetimes[p][b].uses;
  const auto step = [&](std::uint32_t i) {
    before_instruction(i, program);
    execute(i);
    after_instruction(i, program);
  };
  if (debug_.order == Order::random) return run_random(program, step);
  for (std::uint32_t i = 0; i < set_.programs[p].instructions.size(); ++i) step(i);
}

void OneByOne::run_random(int program,
                          const std::function<void(std::uint32_t instruction)>& step) const {
  const auto p = to_size(program);
  const Waits& waits = plan_.waits[p];
  RandomOrder random(debug_.random_seed);
  std::array<std::uint32_t, kLaneCount> next{};  // by lane, also the number done
  for (std::size_t left = set_.programs[p].instructions.size(); left > 0; --left) {
    std::array<std::size_t, kLaneCount> ready{};
    std::size_t count = 0;
    for (std::size_t l = 0; l < kLaneCount; ++l) {
      const auto& code = schedules_.code(static_cast<Lane>(l), program);
      if (next[l] >= code.size()) continue;
      const std::uint32_t i = code[next[l]];
      bool legal = true;
      for (std::uint32_t w = waits.begin[i]; w < waits.begin[i + 1]; ++w) {
        const Wait& wait = waits.all[w];
        legal = legal && next[to_size(wait.lane)] >= wait.count;
      }
      if (legal || debug_.ignore_waits) ready[count++] = l;
    }
    check(count > 0, "program {} has no instruction that may run next", set_.programs[p].name);
    const std::size_t lane = ready[random.below(count)];
    step(schedules_.code(static_cast<Lane>(lane), program)[next[lane]++]);
  }
}

// A temporary is born: what was in its place is gone.
void OneByOne::before_instruction(std::uint32_t instruction, int program) {
  const auto p = to_size(program);
  for (const Buffer b : set_.programs[p].instructions[instruction].writes) {
    const BufferSpec& s = set_.spec(set_.spec(b).root);
    const Lifetime& life = plan_.lifetimes[p][s.root.id];
    if (s.program != program || uses_left_[s.root.id] != life.uses) continue;
    std::byte* at = bases_.base[to_size(s.tier)] + plan_.offset[s.root.id];
    if (debug_.poison) poison(s, program);
    if (debug_.check_guards && s.bytes > 0) {  // no bytes, no place
      std::memset(at + s.bytes, static_cast<int>(kGuard), plan_.guard_bytes);
    }
  }
}

void OneByOne::after_instruction(std::uint32_t instruction, int program) {
  const auto p = to_size(program);
  const Instruction& ins = set_.programs[p].instructions[instruction];
  for (const Buffer b : ins.writes) check_written(ins, b);
  const auto used = [&](Buffer b) {
    const BufferSpec& s = set_.spec(set_.spec(b).root);
    if (--uses_left_[s.root.id] > 0 || s.program != program || !debug_.poison) return;
    poison(s, program);
  };
  for (const Buffer b : ins.reads) used(b);
  for (const Buffer b : ins.writes) used(b);
}

void OneByOne::check_written(const Instruction& ins, Buffer b) const {
  const BufferSpec& s = set_.spec(b);
  if (s.tier == Tier::disk) return;  // not memory
  std::byte* root = bases_.base[to_size(s.tier)] + plan_.offset[s.root.id];
  if (debug_.check_guards && set_.spec(s.root).bytes > 0) {
    const std::byte* guard = root + set_.spec(s.root).bytes;
    const bool intact =
        std::all_of(guard, guard + plan_.guard_bytes, [](std::byte g) { return g == kGuard; });
    check(intact, "{} wrote behind the end of {} ({} bytes)", ins.name, set_.name(b),
          set_.spec(s.root).bytes);
  }
  if (debug_.check_nan && s.role != Role::workspace) {
    const TensorView v(root + s.offset, s.dtype, s.shape, s.strides);
    const std::int64_t at = first_nan(v);
    if (at >= 0) {
      fail(ErrorCode::internal, "{} wrote NaN to element {} of {} {}", ins.name, at, set_.name(b),
           s.shape);
    }
  }
}

// Fills a temporary, except where another one lives: in random order a buffer may be born while
// parts of its place that no instruction of its own has touched yet still hold a neighbour.
void OneByOne::poison(const BufferSpec& root, int program) {
  const auto& life = plan_.lifetimes[to_size(program)];
  const auto range = [&](const BufferSpec& s) {
    const std::uint64_t begin = plan_.offset[s.root.id];
    return std::pair(begin, begin + s.bytes);
  };
  std::vector<std::pair<std::uint64_t, std::uint64_t>> alive;
  for (std::uint32_t i = 0; i < set_.buffers.size(); ++i) {
    const BufferSpec& s = set_.buffers[i];
    const bool lives = uses_left_[i] > 0 && uses_left_[i] < life[i].uses;
    if (lives && s.program == program && s.tier == root.tier && i != root.root.id) {
      alive.push_back(range(s));
    }
  }
  std::ranges::sort(alive);
  std::byte* const base = bases_.base[to_size(root.tier)];
  auto [at, end] = range(root);
  const auto fill_to = [&](std::uint64_t to) {
    if (at < to) std::memset(base + at, static_cast<int>(kPoison), to - at);
  };
  for (const auto& [from, to] : alive) {
    fill_to(std::min(from, end));
    at = std::max(at, to);
  }
  fill_to(end);
}

void OneByOne::fill_guards() {
  check(plan_.guard_bytes > 0, "the plan has no guard bytes to check");
  std::fill_n(bases_.base[0], plan_.peak_of(Tier::device).count, kGuard);
  std::fill_n(bases_.base[1], plan_.peak_of(Tier::host).count, kGuard);
}

}  // namespace ballast
