#include "plan/gpu_stretches.h"

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

GpuStretches::GpuStretches(const ProgramSet& set, const MemoryPlan& plan) {
  for (std::size_t p = 0; p < set.programs.size(); ++p) {
    const auto& code = set.programs[p].instructions;
    const Waits& waits = plan.waits[p];
    OfProgram& now = programs_.emplace_back();
    for (std::size_t i = 0; i < code.size(); ++i) {
      if (code[i].lane != Lane::compute) continue;
      now.fixed.push_back(on_device_alone(set, code[i]));
      now.waits.push_back(waits.begin[i] != waits.begin[i + 1]);
    }
    now.awaited.resize(now.fixed.size());
    now.begins.resize(now.fixed.size(), kNone);
    now.stretches.reserve(now.fixed.size() / kShortest);  // nothing is allocated between steps
    for (const Wait& w : waits.all) {
      if (w.lane == Lane::compute) now.awaited[w.count - 1] = true;
    }
  }
}

void GpuStretches::note(int program, GpuQueue& queue,
                        const std::function<void(std::uint32_t)>& give) {
  OfProgram& p = of(program);
  p.noted = true;
  const auto all = static_cast<std::uint32_t>(p.fixed.size());
  if (all > kMost) return;
  for (std::uint32_t first = 0; first < all;) {
    std::uint32_t end = first;
    while (end < all && end - first < left_ && p.fixed[end] && (end == first || !p.waits[end])) {
      ++end;
      if (p.awaited[end - 1]) break;
    }
    if (end - first >= kShortest) {
      queue.begin_recording();
      GpuRecording made;
      try {
        for (std::uint32_t i = first; i < end; ++i) give(i);
        made = queue.end_recording();
      } catch (const Error&) {
        const bool refused = queue.recording_is_broken();
        queue.end_recording();
        if (!refused) throw;  // it would have failed in a run as well
      }
      if (made) {
        p.begins[first] = static_cast<std::uint32_t>(p.stretches.size());
        p.stretches.push_back({first, end - first, std::move(made)});
        left_ -= end - first;
      }
    }
    first = std::max(end, first + 1);
  }
}

}  // namespace ballast
