#include "app/bench/memory_use.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/planning_heap.h"
#include "core/error.h"
#include "core/to_size.h"
#include "memory/process_memory.h"

namespace ballast {

void MemoryUse::add_to(nlohmann::ordered_json& j) const {
  const auto arena = [&](const std::string& name, Tier t) {
    j[name + "_planned"] = arenas[to_size(t)].planned.count;
    j[name + "_used"] = arenas[to_size(t)].used.count;
  };
  arena("device_arena", Tier::device);
  arena("host_arena", Tier::host);
  arena("disk", Tier::disk);
  j["device_planned"] = device_planned.count;
  j["host_planned"] = host_planned.count;
  j["host_used"] = host_used.count;
  if (gpu.empty()) return;
  j["device"] = gpu;
  j["device_used"] = gpu_used.count;
  j["device_context"] = gpu_context.count;
}

std::string MemoryUse::text() const {
  const auto& [device, host, disk] = arenas;
  std::string text =
      fmt::format("compute memory {} planned, {} used; buffers in RAM {} planned, {} used\n",
                  device.planned, device.used, host.planned, host.used);
  if (!gpu.empty()) {
    text += fmt::format("GPU memory {} planned, {} used, {} of it by its context; ", device_planned,
                        gpu_used, gpu_context);
  }
  return text + fmt::format("process {} planned, {} used\n",
                            host_planned + (gpu.empty() ? device_planned : Bytes{}), host_used);
}

MemoryUse memory_use(const fit::PlannedRun& planned, const MemoryPlan& plan, const Runner& runner,
                     const GpuInfo* gpu) {
  MemoryUse use;
  use.device_planned = planned.needed(Tier::device);
  use.host_planned = planned.needed(Tier::host);
  for (const Tier t : kTiers) use.arenas[to_size(t)] = {plan.peak_of(t), runner.high_water(t)};
  if (gpu != nullptr) {
    use.gpu = gpu->name;
    use.gpu_used = gpu_memory_of_process();
    use.gpu_context = gpu->context;
  }
  if (const auto memory = process_memory()) use.host_used = memory->total();
  return use;
}

fit::PlannedRun fitting_plan(const fit::Request& request) {
  const PlanningHeap heap;
  auto outcome = fit::find_plan(request);
  if (auto* refusal = std::get_if<Refusal>(&outcome)) {
    fail(ErrorCode::refused,
         shortage_lines(refusal->shortages, request.budget, request.backend.device == Device::cpu));
  }
  return std::get<fit::PlannedRun>(std::move(outcome));
}

}  // namespace ballast
