#include "report/machine_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/path_kind.h"
#include "core/to_size.h"
#include "memory/budget.h"
#include "memory/gpu.h"
#include "memory/proc_text.h"

namespace ballast {
namespace {

using State = MachineCheck::State;

MachineCheck check_ram(const Machine& m) {
  const auto usable = available_memory(m);
  if (!m.ram || !usable) {
    return {"RAM", State::warning, "the kernel does not say how much there is",
            "give every run a budget: [memory] ram = \"...\""};
  }
  MachineCheck c = {"RAM", State::good,
                    fmt::format("{} of {} can be used now, {} of it by default", *usable, *m.ram,
                                default_budget(m).host),
                    ""};
  if (*usable <= reserve_of(*usable)) {
    c.state = State::warning;
    c.advice = fmt::format("end other programs: the reserve alone is {}", reserve_of(*usable));
  } else if (m.ram_available && m.ram_available->count < m.ram->count / 2) {
    c.state = State::note;
    c.advice =
        fmt::format("other programs hold {}: end them for larger runs", *m.ram - *m.ram_available);
  }
  return c;
}

MachineCheck check_group(const Machine& m) {
  if (!m.cgroup.memory) return {"control group", State::good, "no memory limit", ""};
  MachineCheck c = {
      "control group", State::note,
      fmt::format("limit {}, {} left", *m.cgroup.memory, m.cgroup.memory_left.value_or(Bytes{})),
      ""};
  if (m.ram && *m.cgroup.memory < *m.ram) {
    c.advice = fmt::format(
        "the kernel kills beyond it, whatever the machine has free; of {} RAM a container started "
        "with a larger limit (docker --memory, systemd MemoryMax) could use more",
        *m.ram);
  }
  return c;
}

MachineCheck check_swap(const Machine& m) {
  if (!m.swap || m.swap->count == 0) {
    return {"swap", State::good, "none (not needed)", ""};
  }
  const Bytes used = *m.swap - std::min(*m.swap, m.swap_free.value_or(*m.swap));
  MachineCheck c = {"swap", State::good, fmt::format("{} of {} used", used, *m.swap), ""};
  if (used.count > m.swap->count / 2) {
    c.state = State::warning;
    c.advice = "little RAM is free now: a run would wait for the disk; end other programs";
  }
  return c;
}

MachineCheck check_locked(const Machine& m) {
  if (!m.locked) return {"locked memory", State::note, "the limit is not known", ""};
  if (*m.locked == kUnlimited) return {"locked memory", State::good, "unlimited", ""};
  MachineCheck c = {"locked memory", State::good, fmt::format("limit {}", *m.locked), ""};
  if (*m.locked < 64_MiB) {
    c.state = State::note;
    c.advice =
        "matters for GPU runs only, whose RAM is pinned: if that fails, ulimit -l "
        "unlimited, or memlock in /etc/security/limits.conf";
  }
  return c;
}

MachineCheck check_disk_space(const std::filesystem::path& folder) {
  const auto free = disk_free(folder);
  if (!free) {
    return {"disk space", State::warning, fmt::format("unknown for {}", folder.string()),
            "name a folder that exists"};
  }
  MachineCheck c = {"disk space", State::good, fmt::format("{} free at {}", *free, folder.string()),
                    ""};
  if (*free < 10_GB) {
    c.state = State::warning;
    c.advice = "checkpoints and caches need room: free some, or set output_dir to another disk";
  }
  return c;
}

MachineCheck check_disk_speed(const DiskSpeed& d) {
  if (!d.problem.empty()) {
    return {"disk speed", State::note, "not measured: " + d.problem,
            "name a folder that can be written"};
  }
  MachineCheck c = {"disk speed", State::good,
                    fmt::format("reads {}/s {}", Bytes{static_cast<std::uint64_t>(d.read)},
                                d.direct ? "past the page cache" : "through the page cache"),
                    ""};
  if (d.write) {
    c.finding += fmt::format(", writes {}/s", Bytes{static_cast<std::uint64_t>(*d.write)});
  }
  if (!d.direct) {
    c.state = State::note;
    c.advice = "this file system has no direct reads, so the number may be that of the cache";
  }
  if (d.read < 500e6) {
    c.state = State::warning;
    // The 14.3 billion weights of an A14B expert, as a measure people can place.
    c.advice = fmt::format(
        "streaming from here is slow (an A14B expert in fp8 takes {:.0f} s per pass): put model "
        "files on an NVMe disk, or keep more blocks in RAM",
        14.3e9 / std::max(d.read, 1.0));
  }
  return c;
}

MachineCheck check_huge_pages(const std::filesystem::path& root) {
  const auto text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled");
  if (!text) return {"huge pages", State::note, "not offered by this kernel", ""};
  const std::size_t begin = text->find('['), end = text->find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return {"huge pages", State::note, "unknown", ""};
  }
  const std::string mode = text->substr(begin + 1, end - begin - 1);
  if (mode != "never") return {"huge pages", State::good, mode, ""};
  return {"huge pages", State::note, "off",
          "some per cent of speed: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"};
}

MachineCheck check_gpu(const std::filesystem::path& root) {
  const auto version = read_text(root / "proc/driver/nvidia/version");
  const bool node = path_exists(root / "dev/nvidiactl") || path_exists(root / "dev/nvidia0");
  const std::string build = built_with_cuda() ? "" : "; this build computes on the CPU";
  if (!version && !node) {
    return {"GPU", State::good, "no NVIDIA driver" + build, ""};
  }
  std::string driver = "NVIDIA driver of unknown version";
  if (version) {
    std::string_view rest = *version;  // "NVRM version: NVIDIA UNIX ... Kernel Module  550.54 ..."
    driver = std::string(take(rest, '\n'));
    driver = driver.substr(std::min(driver.find("NVIDIA"), driver.size()), 80);
  }
  if (node && version) return {"GPU", State::good, driver + build, ""};
  if (version) {
    return {"GPU", State::warning, driver + ", but no device node" + build,
            "nvidia-modprobe -u -c 0 makes it; in a container start it with --gpus all"};
  }
  return {"GPU", State::warning, "device node, but the kernel module is not loaded" + build,
          "modprobe nvidia, or restart after the driver was updated"};
}

}  // namespace

std::string_view name_of(State s) {
  constexpr std::array<std::string_view, 3> kNames = {"good", "note", "warning"};
  return kNames[to_size(s)];
}

std::vector<MachineCheck> check_machine(const Machine& machine, const std::filesystem::path& folder,
                                        const std::optional<DiskSpeed>& disk,
                                        const std::filesystem::path& root) {
  std::vector<MachineCheck> checks = {check_ram(machine), check_group(machine), check_swap(machine),
                                      check_locked(machine), check_disk_space(folder)};
  if (disk) checks.push_back(check_disk_speed(*disk));
  checks.push_back(check_huge_pages(root));
  checks.push_back(check_gpu(root));
  return checks;
}

}  // namespace ballast
