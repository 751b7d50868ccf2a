#pragma once

#include <cstddef>
#include <future>
#include <memory>

#include "core/bytes.h"
#include "core/device.h"
#include "memory/arena.h"
#include "memory/gpu.h"
#include "memory/tier.h"

namespace ballast {

// The arenas of a run. Where there is a GPU, pages come to the host's and are pinned (a second for
// every 20 GB) while its owner goes on: whoever knows the sizes before the programs are recorded
// opens them first.
class RunMemory {
 public:
  // On a GPU, open_gpu() first.
  RunMemory(Device device, Bytes device_bytes, Bytes host_bytes,
            GpuArena::Reach reach = GpuArena::Reach::device);
  RunMemory(RunMemory&&) = default;

  std::byte* base(Tier t) const;
  Bytes size(Tier t) const;

  void await_present();  // from then on it can be written
  // From then on the GPU reads and writes it by itself; copies by its driver work before.
  void await_pinned();
  bool pinned() const { return !pinning_.valid(); }

 private:
  Arena device_;
  GpuArena gpu_;                 // instead of it on a GPU
  std::unique_ptr<Arena> host_;  // stays where it is for those who work on it
  std::shared_future<void> present_;
  std::future<PinnedRegion> pinning_;
  PinnedRegion pinned_;
};

}  // namespace ballast
