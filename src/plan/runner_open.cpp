// What Runner makes before the first run: memory, scratch space, what libraries prepare.

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/error.h"
#include "plan/runner.h"

namespace ballast {

// Pinning takes a second for every 20 GB, what libraries prepare half a second or more: they go
// side by side.
std::future<PinnedRegion> Runner::open_device() {
  // One by one, the host looks at memory between instructions.
  const auto reach = options_.debug.order == Order::concurrent ? GpuArena::Reach::device
                                                               : GpuArena::Reach::host_too;
  gpu_memory_ = GpuArena(plan_.peak_of(Tier::device), "device arena", reach);
  bases_.base[0] = gpu_memory_.base();
  gpu_.emplace(set_, plan_);
  return std::async(std::launch::async, [this] {
    use_gpu();
    {
      ThreadPool all(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
      host_.prefault(all);  // pinning pages that are there is ten times as fast
    }
    return PinnedRegion(host_.base(), host_.size());
  });
}

void Runner::open_scratch() {
  const std::string& folder = options_.scratch_folder;
  scratch_ =
      ScratchFile::create(folder.empty() ? std::filesystem::temp_directory_path().string() : folder,
                          plan_.peak_of(Tier::disk));
  bases_.scratch = &scratch_;
}

void Runner::prepare() {
  for (std::size_t p = 0; p < set_.programs.size(); ++p) {
    for (const Instruction& i : set_.programs[p].instructions) {
      if (!i.prepare) continue;
      check(gpu_.has_value(), "{} has something to prepare, but no GPU", i.name);
      const auto begin = std::chrono::steady_clock::now();
      while_doing(fmt::format("preparing {} of program {}", i.name, set_.programs[p].name), [&] {
        i.prepare(Bindings(set_, plan_.offset, bases_, i, step_, gpu_->stream(i.lane, &copier_),
                           nullptr));
      });
      opening_.by_operation[std::string(i.name.substr(i.name.rfind('.') + 1))] +=
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
  }
}

}  // namespace ballast
