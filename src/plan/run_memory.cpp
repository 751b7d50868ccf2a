#include "plan/run_memory.h"

#include <algorithm>
#include <thread>

#include "core/start_thread.h"
#include "core/thread_pool.h"

namespace ballast {

RunMemory::RunMemory(Device device, Bytes device_bytes, Bytes host_bytes, GpuArena::Reach reach)
    : device_(device == Device::cpu ? device_bytes : Bytes{}, "the run (compute share)"),
      host_(std::make_unique<Arena>(host_bytes, "the run (buffers)")) {
  if (device == Device::cpu) return;
  gpu_ = GpuArena(device_bytes, "the run", reach);
  present_ = start_task("preparing RAM", [host = host_.get()] {
               ThreadPool all(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
               host->prefault(all);  // pinning pages that are there is ten times as fast
             }).share();
  pinning_ = start_task("pinning RAM", [host = host_.get(), present = present_] {
    present.get();
    use_gpu();
    return PinnedRegion(host->base(), host->size());
  });
}

std::byte* RunMemory::base(Tier t) const {
  if (t == Tier::host) return host_->base();
  return gpu_.base() ? gpu_.base() : device_.base();
}

Bytes RunMemory::size(Tier t) const {
  if (t == Tier::host) return host_->size();
  return gpu_.base() ? gpu_.size() : device_.size();
}

void RunMemory::await_present() {
  if (present_.valid()) present_.get();
}

void RunMemory::await_pinned() {
  if (pinning_.valid()) pinned_ = pinning_.get();
}

}  // namespace ballast
