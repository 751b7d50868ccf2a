#include "emulated_cuda.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "emulated_recording.h"

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim, gridDim;

namespace emulated {

constinit thread_local std::size_t running = 0;
constinit thread_local unsigned long long* running_slots = nullptr;

namespace {

constexpr std::size_t kStack = 128 << 10;

// Where to go on, as the compiler's own setjmp keeps it: three words instead of libc's two hundred
// bytes and the calls around them.
struct Place {
  void* words[5] = {};
};
// A function of its own: one that sets a place must not jump.
[[noreturn, gnu::noinline]] void go_to(Place& p) { __builtin_longjmp(p.words, 1); }

enum class State { ready, at_warp, at_block, done };

struct Fiber {
  std::unique_ptr<char[]> stack{new char[kStack]};
  ucontext_t start{};
  Place resume;
  bool started = false;
};

struct Thread {
  Fiber* fiber = nullptr;
  State state = State::ready;
  uint3 index{};
};

// Slots of two rounds: a lane may be one exchange ahead of another that has yet to read.
struct Warp {
  unsigned long long slots[2][32] = {};
  unsigned round = 0;
};

// What one host thread emulates at a time.
struct Machine {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> idle;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<unsigned long long> shared;
  std::size_t warp_end = 0;  // of the warp that runs
  const std::function<void()>* kernel = nullptr;
  Place scheduler;
};
thread_local Machine own_machine;
constinit thread_local Machine* machine = nullptr;  // own_machine, once there was a launch

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

std::size_t first_ready(const Machine& m, std::size_t from) {
  while (from < m.warp_end && m.threads[from].state != State::ready) ++from;
  return from;
}

void make_running(const Machine& m, std::size_t i) {
  running = i;
  threadIdx = m.threads[i].index;
}

// A fiber serves one thread after another: making a context takes two system calls, more than most
// threads do, and threads that never wait need no change of fibers at all.
void entry();

// Lets a thread of the warp go on, or where there is none left the scheduler.
[[noreturn]] void go_on_with(Machine& m, std::size_t i) {
  if (i == m.warp_end) go_to(m.scheduler);
  Thread& t = m.threads[i];
  if (!t.fiber) {
    if (m.idle.empty()) {
      m.fibers.push_back(std::make_unique<Fiber>());
      m.idle.push_back(m.fibers.back().get());
    }
    t.fiber = m.idle.back();
    m.idle.pop_back();
  }
  make_running(m, i);
  Fiber& f = *t.fiber;
  if (f.started) go_to(f.resume);
  f.started = true;
  getcontext(&f.start);
  f.start.uc_stack.ss_sp = f.stack.get();
  f.start.uc_stack.ss_size = kStack;
  f.start.uc_link = nullptr;
  makecontext(&f.start, entry, 0);
  setcontext(&f.start);
  die("a fiber did not start");
}

// The thread that runs waits, or its fiber has nothing to do; comes back when the fiber goes on.
[[gnu::noinline]] void leave(Machine& m, Fiber& fiber, std::size_t next) {
  if (__builtin_setjmp(fiber.resume.words) == 0) go_on_with(m, next);
}

void entry() {
  Machine& m = *machine;
  for (;;) {
    (*m.kernel)();
    Thread& t = m.threads[running];
    Fiber& fiber = *t.fiber;
    t.state = State::done;
    t.fiber = nullptr;
    const std::size_t next = first_ready(m, running + 1);
    if (next < m.warp_end && !m.threads[next].fiber) {
      m.threads[next].fiber = &fiber;
      make_running(m, next);
      continue;
    }
    m.idle.push_back(&fiber);
    leave(m, fiber, next);
  }
}

void wait(State state) {
  Machine& m = *machine;
  Thread& t = m.threads[running];
  t.state = state;
  leave(m, *t.fiber, first_ready(m, running + 1));
}

// Each thread of the warp that is ready runs until it waits or ends.
[[gnu::noinline]] void run_ready(Machine& m, std::size_t first) {
  if (__builtin_setjmp(m.scheduler.words) == 0) go_on_with(m, first_ready(m, first));
}

// Runs a warp until all its threads wait at the block's barrier or are done.
void run_warp(Machine& m, Warp& warp, std::size_t first, std::size_t end) {
  m.warp_end = end;
  for (;;) {
    running_slots = warp.slots[warp.round % 2];
    run_ready(m, first);
    std::size_t at_warp = 0, at_block = 0;
    for (std::size_t i = first; i < end; ++i) {
      at_warp += m.threads[i].state == State::at_warp;
      at_block += m.threads[i].state == State::at_block;
    }
    if (at_warp == 0) return;
    if (at_block > 0) die("threads of one warp wait at different barriers");
    for (std::size_t i = first; i < end; ++i) {
      if (m.threads[i].state == State::at_warp) m.threads[i].state = State::ready;
    }
    ++warp.round;
  }
}

void run_block(Machine& m) {
  const std::size_t count = m.threads.size();
  for (Thread& t : m.threads) t.state = State::ready;
  m.warps.assign((count + 31) / 32, {});
  for (;;) {
    for (std::size_t w = 0; w < count; w += 32) {
      run_warp(m, m.warps[w / 32], w, w + 32 < count ? w + 32 : count);
    }
    bool waiting = false;
    for (Thread& t : m.threads) {
      if (t.state != State::at_block) continue;
      t.state = State::ready;
      waiting = true;
    }
    if (!waiting) return;
  }
}

void number_threads(std::vector<Thread>& threads, dim3 block) {
  threads.clear();
  for (unsigned z = 0; z < block.z; ++z) {
    for (unsigned y = 0; y < block.y; ++y) {
      for (unsigned x = 0; x < block.x; ++x) threads.push_back({.index = {x, y, z}});
    }
  }
}

}  // namespace

void launch(dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
            const std::function<void()>& kernel) {
  if (noted([=] { launch(grid, block, shared, stream, kernel); })) return;
  if (std::size_t{block.x} * block.y * block.z > 1024 || grid.x == 0 || grid.y == 0 ||
      grid.z == 0 || block.x == 0 || shared > (99 << 10) || grid.y > 65535 || grid.z > 65535) {
    die("a launch that no GPU takes");
  }
  machine = &own_machine;
  Machine& m = *machine;
  m.kernel = &kernel;
  m.shared.assign((shared + 7) / 8 + 2, 0xa5a5a5a5a5a5a5a5ull);
  number_threads(m.threads, block);
  gridDim = grid;
  blockDim = block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        run_block(m);
      }
    }
  }
}

void* dynamic_shared() {
  auto at = reinterpret_cast<std::uintptr_t>(machine->shared.data());
  return reinterpret_cast<void*>((at + 15) / 16 * 16);
}

void block_barrier() { wait(State::at_block); }
void warp_barrier() { wait(State::at_warp); }

}  // namespace emulated
