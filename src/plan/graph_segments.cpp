#include "plan/graph_segments.h"

#include <algorithm>

#include "core/error.h"

namespace ballast {
namespace {

bool on_device_alone(const ProgramSet& set, const Instruction& i) {
  const auto elsewhere = [&](Buffer b) { return set.spec(b).tier != Tier::device; };
  return !(i.reads.empty() && i.writes.empty()) && std::ranges::none_of(i.reads, elsewhere) &&
         std::ranges::none_of(i.writes, elsewhere);
}

}  // namespace

std::uint64_t GraphSegments::launches(const Program& program) {
  std::uint64_t count = 0;
  for (const Instruction& i : program.instructions) {
    if (i.lane == Lane::compute) count += i.cost.launches;
  }
  return count;
}

GraphSegments::GraphSegments(const ProgramSet& set, const MemoryPlan& plan) {
  for (std::size_t p = 0; p < set.programs.size(); ++p) {
    const auto& code = set.programs[p].instructions;
    const Waits& waits = plan.waits[p];
    ProgramSegments& now = programs_.emplace_back();
    for (std::size_t i = 0; i < code.size(); ++i) {
      if (code[i].lane != Lane::compute) continue;
      now.fixed.push_back(on_device_alone(set, code[i]));
      now.launches.push_back(code[i].cost.launches);
      now.waits.push_back(waits.begin[i] != waits.begin[i + 1]);
    }
    now.all_launches = launches(set.programs[p]);
    now.awaited.resize(now.fixed.size());
    now.begins.resize(now.fixed.size(), kNone);
    now.segments.reserve(now.fixed.size() / kShortest);  // nothing is allocated between steps
    for (const Wait& w : waits.all) {
      if (w.lane == Lane::compute) now.awaited[w.count - 1] = true;
    }
  }
}

void GraphSegments::capture(int program, GpuQueue& queue,
                            const std::function<void(std::uint32_t)>& enqueue) {
  ProgramSegments& p = of(program);
  p.captured = true;
  const auto all = static_cast<std::uint32_t>(p.fixed.size());
  if (p.all_launches > kMax) return;
  for (std::uint32_t first = 0; first < all;) {
    std::uint32_t end = first, launched = 0;
    while (end < all && launched + p.launches[end] <= left_ && p.fixed[end] &&
           (end == first || !p.waits[end])) {
      launched += p.launches[end];
      ++end;
      if (p.awaited[end - 1]) break;
    }
    if (end - first >= kShortest) {
      queue.begin_capture();
      CudaGraph made;
      try {
        for (std::uint32_t i = first; i < end; ++i) {
          if ((i - first) % kMarkerInterval == 0) queue.reach(i);
          enqueue(i);
        }
        made = queue.end_capture();
      } catch (const Error&) {
        const bool refused = queue.recording_is_broken();
        queue.end_capture();
        if (!refused) throw;  // it would have failed in a run as well
      }
      if (made) {
        p.begins[first] = static_cast<std::uint32_t>(p.segments.size());
        p.segments.push_back({first, end - first, std::move(made)});
        left_ -= launched;
      }
    }
    first = std::max(end, first + 1);
  }
}

}  // namespace ballast
