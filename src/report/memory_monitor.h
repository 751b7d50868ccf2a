#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "core/bytes.h"
#include "memory/process_memory.h"

namespace ballast {

// One number per kind of memory a run is judged by.
struct MemoryNumbers {
  Bytes device;  // device arena; of a GPU all that the process has there, context and libraries too
  Bytes host;    // host arena
  Bytes disk;    // scratch space: streamed weights, optimizer state
  Bytes ram;  // the process: anonymous and shared memory. On the CPU backend both arenas are in it

  // The only list: terminal, run log, report and flight record go through it.
  template <class Self, class Visit>
  static void each(Self& m, Visit&& visit) {
    visit("device", m.device);
    visit("host", m.host);
    visit("disk", m.disk);
    visit("ram", m.ram);
  }

  bool operator==(const MemoryNumbers&) const = default;
};

// What users read of MemoryNumbers::each()'s names: "GPU memory", "pinned RAM", "disk", "RAM";
// without a GPU "RAM (compute share)", "RAM (buffers)".
std::string_view display_name_of(std::string_view name, bool gpu);
// Whether a plan is one for a GPU. On the CPU the process holds both arenas, on a GPU one of them.
bool is_for_gpu(const MemoryNumbers& planned);

// Memory in use against memory planned, over a run. sample() allocates nothing and takes about
// 10 us with Counting::quick, so it can be called at every step. For one thread.
class MemoryMonitor {
 public:
  // gpu: what the process has on its GPU now (memory/gpu.h); empty: there is none.
  explicit MemoryMonitor(const MemoryNumbers& planned, std::function<Bytes()> gpu = {})
      : planned_(planned), gpu_(std::move(gpu)) {}

  // arenas: the runner's high-water marks and the scratch space in use; its `ram` is found out here
  // (0 where /proc says nothing), and so is `device` of a GPU.
  const MemoryNumbers& sample(const MemoryNumbers& arenas, Counting counting = Counting::quick);

  const MemoryNumbers& planned() const { return planned_; }
  const MemoryNumbers& now() const { return now_; }    // of the last sample
  const MemoryNumbers& most() const { return most_; }  // over all samples
  std::int64_t samples() const { return samples_; }
  // Of `ram`, from the first sample on: what a run of constant size must keep near zero.
  std::int64_t growth() const;
  // The first number that was ever above its plan; nullopt while all keep to it.
  struct Excess {
    const char* what;  // "ram"
    Bytes most, planned;
  };
  std::optional<Excess> above_plan() const;

 private:
  MemoryNumbers planned_, now_, most_;
  std::function<Bytes()> gpu_;
  Bytes first_ram_;
  std::int64_t samples_ = 0;
};

}  // namespace ballast
