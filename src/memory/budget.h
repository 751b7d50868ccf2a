#pragma once

#include <string_view>

#include "core/bytes.h"
#include "core/device.h"
#include "memory/machine.h"

namespace ballast {

// What a run may use. On the CPU backend host bounds the sum of both arenas and gpu the device
// arena.
struct Budget {
  Bytes gpu, host, disk;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("gpu", c.gpu, "GPU memory Ballast may use, for example 24GiB");
    visit("ram", c.host, "RAM, pinned memory included");
    visit("disk", c.disk, "space for streamed weights and optimizer state");
  }

  bool operator==(const Budget&) const = default;
};

// Left to the rest of the machine when no budget is given: page tables, other processes' growth
// between planning and running. 5 % of what is available, at least 512 MiB.
Bytes reserve_of(Bytes available);

// ram: available memory minus the reserve, 0 when less than the reserve is there. gpu: the same,
// since without a GPU the device arena is host memory. disk: 0, space is written only where the
// user allows it. Fails with ErrorCode::input where the machine does not say what it has.
Budget default_budget(const Machine& machine);

// The same on a GPU: what a desktop and other programs there grow by. 1 % of what is free, at least
// 256 MiB.
Bytes gpu_reserve_of(Bytes free);

// gpu, where there is one: what is free minus the reserve. `libraries`, which a plan counts and a
// budget includes, have most of their memory already when `free` is asked for: the context is made.
Bytes default_gpu_budget(Bytes free, Bytes libraries);

// The values of --gpu, --ram and --disk; "": not given.
struct BudgetFlags {
  std::string_view gpu, ram, disk = {};
};

// What the flags allow, else what the machine has; gpu_memory: of its GPU, where one computes.
// Without a GPU the device arena is RAM, so --ram alone bounds both.
Budget resolve_budget(const Machine& machine, const BudgetFlags& flags, Device device,
                      Bytes gpu_memory);

// Sets the field of that name from text such as "24GiB"; ErrorCode::usage for an unknown field, a
// text that is no size, or a size without a unit (core/bytes.h: missing_unit).
void set_field(Budget& budget, std::string_view field, std::string_view text);

}  // namespace ballast
