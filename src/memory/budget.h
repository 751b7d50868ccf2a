#pragma once

#include <cstdint>
#include <optional>

#include "core/bytes.h"
#include "core/device.h"
#include "memory/machine.h"
#include "memory/memory_limit.h"

namespace ballast {

// What a run may use. On the CPU backend host bounds the sum of both arenas and gpu the device
// arena.
struct Budget {
  Bytes gpu, host, disk;
  // The system's limits that hold for gpu and host; nullopt: none is known, they are ignored, or
  // another machine is planned for. No larger budget helps beyond them.
  std::optional<MemoryLimit> gpu_limit = {}, ram_limit = {};

  // Of the sizes.
  friend bool operator==(const Budget& a, const Budget& b) {
    return a.gpu == b.gpu && a.host == b.host && a.disk == b.disk;
  }
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

// Sizes that the user allows; nullopt: not given.
struct DeclaredBudget {
  std::optional<Bytes> gpu, ram, disk;
};

// How limits of this system count in a budget.
enum class Limits : std::uint8_t {
  hold,     // nothing is planned beyond them
  ignored,  // as declared, with a warning
  foreign,  // another machine is planned for: as declared
};

struct BudgetMachine {
  Device device = Device::cpu;
  Bytes gpu_memory = {};  // that can be used, where a GPU computes
  int threads = 1;        // that compute on the CPU
  Limits limits = Limits::hold;
};

// What is declared, else what the machine has; never more than the system's limits allow, where
// these hold. A warning (once in a process) says what was declared beyond them. Without a GPU the
// device arena is RAM, so ram alone bounds both.
Budget resolve_budget(const Machine& machine, const DeclaredBudget& declared,
                      const BudgetMachine& target);

}  // namespace ballast
