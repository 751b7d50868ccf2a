#include "plan/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "core/to_size.h"

namespace ballast {
namespace {

// Measured on an H200, where contexts take 549 MB of it, and taken for all.
constexpr Bytes kLibraries{580'000'000};

// H200: our own measurements under sustained load. The others are estimates until someone measures
// there, from their data sheets (dense rates of bf16 products summed in f32):
//  - products: 0.66 of it, the H200's share, for data center and workstation cards. GeForce cards
//  sum
//    in f32 at half rate and come nearer to that: 0.86.
//  - products in f32: three quarters; memory: 0.88; PCIe: 0.83 of its raw rate.
//  - attention: what the kernels they get reach on the H200 beside its own; compute
//  capabilities 9.0
//    and 10.0 have kernels of their own, the others share one kind.
//  - GH200: the H200's chip with slower memory, and 0.83 and 0.66 of the 450 GB/s that its link to
//    the processor has each way.
// A GPU with none of these names gets the first of its compute capability (nearest_profile).
const std::array<MachineProfile, 12>& profiles() {
  static const std::array<MachineProfile, 12> kProfiles = {{
      {.name = "h200",
       .description = "NVIDIA H200, 139 GiB, PCIe 5.0 x16",
       .device = Device::cuda,
       .sm = 90,
       .gemm_flops = 650e12,
       .f32_gemm_flops = 50e12,
       .fp8_gemm_flops = 1240e12,
       .attention_flops = 570e12,
       .attention_backward_flops = 455e12,
       .memory_bandwidth = 4.2e12,
       .upload_bandwidth = 55.4e9,
       .download_bandwidth = 55.3e9,
       .both_ways_bandwidth = 101e9,
       .disk_bandwidth = 4.5e9,
       .launch_seconds = 3.6e-6,
       .product_step_seconds = 4.7e-9,
       .device_memory = Bytes{139ull << 30},
       .library_bytes = kLibraries,
       .estimate = false},
      {.name = "gh200",
       .description = "NVIDIA GH200, 96 GB, NVLink-C2C",
       .device = Device::cuda,
       .sm = 90,
       .gemm_flops = 650e12,
       .f32_gemm_flops = 50e12,
       .fp8_gemm_flops = 1240e12,
       .attention_flops = 570e12,
       .attention_backward_flops = 455e12,
       .memory_bandwidth = 3.5e12,
       .upload_bandwidth = 375e9,
       .download_bandwidth = 297e9,
       .disk_bandwidth = 4.5e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{95ull << 30},
       .library_bytes = kLibraries,
       .estimate = true},
      {.name = "b200",
       .description = "NVIDIA B200, 180 GB, PCIe 5.0 x16",
       .device = Device::cuda,
       .sm = 100,
       .gemm_flops = 1480e12,
       .f32_gemm_flops = 56e12,
       .attention_flops = 1300e12,
       .attention_backward_flops = 1040e12,
       .memory_bandwidth = 6.8e12,
       .upload_bandwidth = 52e9,
       .download_bandwidth = 52e9,
       .disk_bandwidth = 5e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{179ull << 30},
       .library_bytes = kLibraries,
       .estimate = true},
      {.name = "a100",
       .description = "NVIDIA A100, 80 GB, PCIe 4.0 x16",
       .device = Device::cuda,
       .sm = 80,
       .gemm_flops = 206e12,
       .f32_gemm_flops = 14e12,
       .attention_flops = 190e12,
       .attention_backward_flops = 128e12,
       .memory_bandwidth = 1.7e12,
       .upload_bandwidth = 26e9,
       .download_bandwidth = 26e9,
       .disk_bandwidth = 3e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{80ull << 30},
       .library_bytes = kLibraries,
       .estimate = true},
      {.name = "rtx3090",
       .description = "NVIDIA RTX 3090, 24 GiB, PCIe 4.0 x16",
       .device = Device::cuda,
       .sm = 86,
       .gemm_flops = 60e12,
       .f32_gemm_flops = 26e12,
       .attention_flops = 55e12,
       .attention_backward_flops = 37e12,
       .memory_bandwidth = 0.82e12,
       .upload_bandwidth = 26e9,
       .download_bandwidth = 26e9,
       .disk_bandwidth = 3e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{24ull << 30},
       .library_bytes = kLibraries,
       .estimate = true},
      {.name = "rtx3080",
       .description = "NVIDIA RTX 3080, 10 GiB, PCIe 4.0 x16",
       .device = Device::cuda,
       .sm = 86,
       .gemm_flops = 50e12,
       .f32_gemm_flops = 22e12,
       .attention_flops = 46e12,
       .attention_backward_flops = 31e12,
       .memory_bandwidth = 0.67e12,
       .upload_bandwidth = 26e9,
       .download_bandwidth = 26e9,
       .disk_bandwidth = 3e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{10ull << 30},
       .library_bytes = kLibraries,
       .estimate = true},
      {.name = "a6000",
       .description = "NVIDIA RTX A6000, 48 GiB, PCIe 4.0 x16",
       .device = Device::cuda,
       .sm = 86,
       .gemm_flops = 102e12,
       .f32_gemm_flops = 29e12,
       .attention_flops = 94e12,
       .attention_backward_flops = 63e12,
       .memory_bandwidth = 0.68e12,
       .upload_bandwidth = 26e9,
       .download_bandwidth = 26e9,
       .disk_bandwidth = 3e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{48ull << 30},
       .library_bytes = kLibraries,
       .estimate = true},
      {.name = "rtx4090",
       .description = "NVIDIA RTX 4090, 24 GiB, PCIe 4.0 x16",
       .device = Device::cuda,
       .sm = 89,
       .gemm_flops = 145e12,
       .f32_gemm_flops = 62e12,
       .attention_flops = 132e12,
       .attention_backward_flops = 89e12,
       .memory_bandwidth = 0.89e12,
       .upload_bandwidth = 26e9,
       .download_bandwidth = 26e9,
       .disk_bandwidth = 3e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{24ull << 30},
       .library_bytes = kLibraries,
       .estimate = true},
      {.name = "rtx4070ti",
       .description = "NVIDIA RTX 4070 Ti, 12 GiB, PCIe 4.0 x16",
       .device = Device::cuda,
       .sm = 89,
       .gemm_flops = 70e12,
       .f32_gemm_flops = 30e12,
       .attention_flops = 64e12,
       .attention_backward_flops = 43e12,
       .memory_bandwidth = 0.44e12,
       .upload_bandwidth = 26e9,
       .download_bandwidth = 26e9,
       .disk_bandwidth = 3e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{12ull << 30},
       .library_bytes = kLibraries,
       .estimate = true},
      {.name = "l40s",
       .description = "NVIDIA L40S, 48 GB, PCIe 4.0 x16",
       .device = Device::cuda,
       .sm = 89,
       .gemm_flops = 239e12,
       .f32_gemm_flops = 68e12,
       .attention_flops = 219e12,
       .attention_backward_flops = 147e12,
       .memory_bandwidth = 0.76e12,
       .upload_bandwidth = 26e9,
       .download_bandwidth = 26e9,
       .disk_bandwidth = 3e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{46068ull << 20},  // the rest is taken by ECC
       .library_bytes = kLibraries,
       .estimate = true},
      {.name = "rtx5090",
       .description = "NVIDIA RTX 5090, 32 GiB, PCIe 5.0 x16",
       .device = Device::cuda,
       .sm = 120,
       .gemm_flops = 180e12,
       .f32_gemm_flops = 78e12,
       .attention_flops = 165e12,
       .attention_backward_flops = 112e12,
       .memory_bandwidth = 1.58e12,
       .upload_bandwidth = 52e9,
       .download_bandwidth = 52e9,
       .disk_bandwidth = 5e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{32ull << 30},
       .library_bytes = kLibraries,
       .estimate = true},
      {.name = "rtx5080",
       .description = "NVIDIA RTX 5080, 16 GiB, PCIe 5.0 x16",
       .device = Device::cuda,
       .sm = 120,
       .gemm_flops = 97e12,
       .f32_gemm_flops = 42e12,
       .attention_flops = 89e12,
       .attention_backward_flops = 60e12,
       .memory_bandwidth = 0.84e12,
       .upload_bandwidth = 52e9,
       .download_bandwidth = 52e9,
       .disk_bandwidth = 5e9,
       .launch_seconds = 5e-6,
       .device_memory = Bytes{16ull << 30},
       .library_bytes = kLibraries,
       .estimate = true},
  }};
  return kProfiles;
}

bool is_product(const Instruction& ins) {
  return ins.cost.work == Work::gemm || ins.cost.work == Work::f32_gemm ||
         ins.cost.work == Work::attention || ins.cost.work == Work::attention_backward;
}

// What a product takes at least: its fixed cost and, for a layer's x or dy times its weight, the
// walk along the contraction, which is as long as what it reads first has columns. Gradients of
// weights are summed in pieces side by side.
double least_of_product(const ProgramSet& set, const Instruction& ins, const MachineProfile& p) {
  const double fixed = std::max(p.launch_seconds, p.product_seconds);
  if (ins.reads.empty() || ins.writes.empty()) return fixed;
  const Shape &in = set.spec(ins.reads[0]).shape, &out = set.spec(ins.writes[0]).shape;
  if (in.rank() != 2) return fixed;
  const auto depth = static_cast<double>(in[1]);
  if (ins.cost.flops != 2 * static_cast<double>(out.elements()) * depth) return fixed;
  constexpr std::int64_t kMaxNarrowColumns =
      64;  // as adapters have: a kernel of ours, eight share the walk
  if (out[out.rank() - 1] > kMaxNarrowColumns) return fixed + depth * p.product_step_seconds;
  return p.launch_seconds + depth / 8 * p.product_step_seconds;
}

// By the processors beside a GPU.
double host_seconds(const Instruction& ins, double bytes, const MachineProfile& p) {
  const double moving = bytes / p.host_memory_bandwidth;
  const bool gemm = ins.cost.work == Work::gemm || ins.cost.work == Work::f32_gemm;
  const double rate = gemm ? p.host_gemm_flops : p.host_attention_flops;
  return is_product(ins) ? std::max(moving, ins.cost.flops / rate) : moving;
}

double exchange_seconds(const ProgramSet& set, const Instruction& ins, double bytes,
                        const MachineProfile& p) {
  return set.groups[to_size(ins.cost.group)].one_host
             ? p.peer_seconds + bytes / p.peer_bandwidth
             : p.network_seconds + bytes / p.network_bandwidth;
}

}  // namespace

bool computes_on_host(const ProgramSet& set) {
  return std::ranges::any_of(set.programs, [](const Program& p) {
    return std::ranges::any_of(
        p.instructions, [](const Instruction& i) { return i.lane == Lane::host && is_product(i); });
  });
}

double moved_bytes(const ProgramSet& set, const Instruction& ins) {
  if (ins.cost.bytes >= 0) return ins.cost.bytes;
  double bytes = 0;
  for (const Buffer b : ins.reads) bytes += static_cast<double>(set.spec(b).bytes);
  for (const Buffer b : ins.writes) bytes += static_cast<double>(set.spec(b).bytes);
  return bytes;
}

std::string machine_text(const MachineProfile& p) {
  return p.estimate ? p.description + " (rates are estimates)" : p.description;
}

double fp8_gemm_flops(const MachineProfile& p) {
  constexpr double kRatio = 1.9;  // 1,210 - 1,270 against 640 - 670 TFLOP/s under sustained load
  return p.fp8_gemm_flops > 0 ? p.fp8_gemm_flops : kRatio * p.gemm_flops;
}

double f32_gemm_flops(const MachineProfile& p) {
  if (p.device == Device::cpu) return p.gemm_flops;  // which multiplies in f32
  constexpr double kRatio = 13;
  return p.f32_gemm_flops > 0 ? p.f32_gemm_flops : p.gemm_flops / kRatio;
}

std::span<const MachineProfile> bundled_profiles() { return profiles(); }

std::string bundled_names() {
  std::string names;
  for (const MachineProfile& p : profiles()) names += (names.empty() ? "" : ", ") + p.name;
  return names;
}

std::optional<MachineProfile> find_profile(std::string_view name) {
  const auto it = std::ranges::find(profiles(), name, &MachineProfile::name);
  if (it == profiles().end()) return std::nullopt;
  return *it;
}

MachineProfile nearest_profile(std::string_view gpu, int sm) {
  std::string letters;  // "NVIDIA GeForce RTX 4090": nvidiageforcertx4090
  for (const char c : gpu) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  const auto distance = [&](const MachineProfile& p) { return std::abs(p.sm - sm); };
  const auto named = [&](const MachineProfile& p) {  // "GH200" holds "h200", too: the longest name
    return letters.find(p.name) == letters.npos ? 0 : p.name.size();
  };
  auto nearest = std::ranges::max_element(profiles(), {}, named);
  if (named(*nearest) == 0) nearest = std::ranges::min_element(profiles(), {}, distance);
  MachineProfile p = *nearest;
  p.description = fmt::format("{}, rates of {}", gpu, nearest->name);
  p.sm = sm;
  p.estimate = true;
  return p;
}

MachineProfile cpu_profile(int threads) {
  const double cores = threads;
  return {.name = std::string(kThisMachine),
          .description = "this machine's processors",
          .device = Device::cpu,
          .gemm_flops = 35e9 * cores,
          .attention_flops = 28e9 * cores,
          .attention_backward_flops = 28e9 * cores,
          .memory_bandwidth = 10e9 * cores,
          .upload_bandwidth = 5e9,
          .download_bandwidth = 5e9,
          .disk_bandwidth = 1e9,
          .launch_seconds = 5e-6,
          .device_memory = {},
          .library_bytes = {},
          .estimate = true};
}

double predicted_seconds(const ProgramSet& set, const Instruction& ins,
                         const MachineProfile& profile) {
  const double bytes = moved_bytes(set, ins);
  switch (ins.lane) {
    case Lane::upload:
      return bytes / 2 / profile.upload_bandwidth;  // read there, written here
    case Lane::download:
      return bytes / 2 / profile.download_bandwidth;
    case Lane::disk:
      return bytes / (ins.cost.work == Work::disk_write && profile.disk_write_bandwidth > 0
                          ? profile.disk_write_bandwidth
                          : profile.disk_bandwidth);
    case Lane::host:
      if (profile.device == Device::cuda) return host_seconds(ins, bytes, profile);
      break;
    case Lane::network:
      if (ins.cost.work == Work::network) return exchange_seconds(set, ins, bytes, profile);
      break;
    case Lane::compute:
      break;
  }
  const double moving = bytes / profile.memory_bandwidth, launch = profile.launch_seconds;
  const double flops = ins.cost.flops;
  switch (ins.cost.work) {
    case Work::gemm:
    case Work::f32_gemm:
    case Work::fp8_gemm: {
      const double computing = flops / (ins.cost.work == Work::fp8_gemm   ? fp8_gemm_flops(profile)
                                        : ins.cost.work == Work::f32_gemm ? f32_gemm_flops(profile)
                                                                          : profile.gemm_flops);
      // Products that go through the same sums one after the other: each reads its operands before
      // it computes and writes what it has at its end, which hides but half of the shorter one
      // (H200: 42 and 15 us for sums of 94 and 25 MB on average).
      const double beside = ins.cost.launches > 1 ? std::min(moving, computing) / 2 : 0;
      return std::max(launch * ins.cost.launches + std::max(moving, computing) + beside,
                      least_of_product(set, ins, profile));
    }
    case Work::attention:
      return std::max(launch, profile.attention_seconds) +
             std::max(moving, flops / profile.attention_flops);
    case Work::attention_backward:
      return std::max(launch, profile.attention_backward_seconds) +
             std::max(moving, flops / profile.attention_backward_flops);
    default:
      return launch * ins.cost.launches + moving;
  }
}

}  // namespace ballast
