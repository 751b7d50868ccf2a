// The rates of a machine that `ballast bench machine` measured. Saved again, a profile that is
// taken is read back with rates that can be divided by.

#include <cmath>

#include "core/log.h"
#include "fuzz.h"
#include "train/run/measured_profile.h"

namespace ballast::fuzz {
namespace {

void check_rates(const MachineProfile& p) {
  for (const double rate :
       {p.gemm_flops, p.attention_flops, p.attention_backward_flops, p.memory_bandwidth,
        p.upload_bandwidth, p.download_bandwidth, p.disk_bandwidth, p.launch_seconds}) {
    require(std::isfinite(rate) && rate > 0);
  }
  for (const double rate : {p.product_step_seconds, p.product_seconds, p.attention_seconds,
                            p.attention_backward_seconds, p.both_ways_bandwidth, p.f32_gemm_flops,
                            p.fp8_gemm_flops, p.disk_write_bandwidth}) {
    require(std::isfinite(rate) && rate >= 0);
  }
}

}  // namespace

void one_input(Input input) {
  static MemoryFile file("cache/ballast/machine-cpu.json");
  static const bool quiet = (log::set_level(log::Level::off), true);
  require(quiet);
  file.write(input.rest());
  const auto profile = train::load_profile("this", file.path());
  if (!profile) return;
  check_rates(*profile);
  static const std::string copy = memory_folder() + "/copy.json";
  train::save_profile(*profile, copy);
  const auto again = train::load_profile("this", copy);
  require(again && again->device == profile->device);
  require(again->description == profile->description);
  check_rates(*again);
}

}  // namespace ballast::fuzz
