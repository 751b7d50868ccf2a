#include "train/run/device_choice.h"

#include <algorithm>

#include "core/to_size.h"
#include "train/run/measured_profile.h"

namespace ballast::train {

RunTarget target_of(const MachineProfile& profile, const MachineOptions& options) {
  RunTarget t = {.profile = profile, .backend = {}, .host_threads = 1};
  t.backend.device = profile.device;
  t.backend.verify_weights = options.verify_weights;
  if (profile.device == Device::cuda) {
    // The host has little to compute: one thread fills the GPU's queue.
    t.backend.threads = 1;
    t.host_threads =
        options.threads > 0 ? options.threads : std::max(1, usable_cpus(read_machine()) - 1);
    t.backend.sm = profile.sm;
    t.backend.deterministic = options.deterministic;
  } else {
    t.backend.threads = options.threads > 0 ? options.threads : usable_cpus(read_machine());
  }
  return t;
}

RunTarget gpu_target(const GpuInfo& gpu, const MachineOptions& options) {
  MachineProfile p = with_measured_rates(nearest_profile(gpu.name, gpu.sm), gpu.name);
  p.name = "this";
  p.device_memory = default_gpu_budget(gpu.free, p.library_bytes);
  RunTarget t = target_of(p, options);
  const MachineProfile cpu = with_measured_rates(cpu_profile(t.host_threads), "this");
  t.profile.host_gemm_flops = cpu.gemm_flops;
  t.profile.host_attention_flops = cpu.attention_flops;
  t.profile.host_memory_bandwidth = cpu.memory_bandwidth;
  return t;
}

Budget resolve_budget(const RunTarget& target, const MachineOptions& options,
                      const Machine& machine) {
  const bool here = target.profile.name == kThisMachine;
  Budget budget = ballast::resolve_budget(machine, options.budget(),
                                          {.device = target.backend.device,
                                           .gpu_memory = target.profile.device_memory,
                                           .threads = target.backend.threads,
                                           .limits = !here                   ? Limits::foreign
                                                     : options.ignore_limits ? Limits::ignored
                                                                             : Limits::hold});
  const auto share = [&](Bytes& all) { all.count /= to_size(target.ranks); };
  share(budget.host), share(budget.disk);
  if (target.backend.device == Device::cpu && !options.gpu) share(budget.gpu);
  if (budget.ram_limit) share(budget.ram_limit->most);
  // Where less than the reserve is free nothing is left; 0 would mean no limit to text models and
  // VAEs.
  constexpr Bytes kNothing{1};
  budget.host = std::max(budget.host, kNothing);
  budget.gpu = std::max(budget.gpu, kNothing);
  return budget;
}

RunTarget this_machine(const MachineOptions& options) {
  const bool gpu =
      options.device == DeviceChoice::cuda ||
      (options.device == DeviceChoice::automatic && built_with_cuda() && gpu_is_usable());
  if (gpu) return gpu_target(open_gpu(), options);
  const int threads = options.threads > 0 ? options.threads : usable_cpus(read_machine());
  return target_of(with_measured_rates(cpu_profile(threads), "this"), options);
}

}  // namespace ballast::train
