#include "emulated_cuda.h"

#include <ucontext.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "emulated_recording.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace emulated {
namespace {

constexpr std::size_t kStack = 128 << 10;

enum class State { ready, at_warp, at_block, done };

struct Fiber {
  std::unique_ptr<char[]> stack{new char[kStack]};
  ucontext_t start{};
  jmp_buf resume{};
  bool started = false;
};

struct Thread {
  Fiber* fiber = nullptr;
  State state = State::ready;
  uint3 index{};
};

struct Warp {
  unsigned long long slots[32] = {};
};

// What one host thread emulates at a time.
struct Machine {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> idle;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<unsigned long long> shared;
  std::size_t now = 0;  // of threads
  const std::function<void()>* kernel = nullptr;
  jmp_buf scheduler{};
};
thread_local Machine machine;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

void yield(State state);

// A fiber serves one thread after another: making a context takes two system calls, more than most
// threads do.
void entry() {
  for (;;) {
    (*machine.kernel)();
    yield(State::done);
  }
}

void yield(State state) {
  Machine& m = machine;
  Thread& t = m.threads[m.now];
  t.state = state;
  if (_setjmp(t.fiber->resume) == 0) _longjmp(m.scheduler, 1);
}

// Lets a thread run until it waits or ends.
__attribute__((noinline)) void resume(std::size_t i) {
  Machine& m = machine;
  Thread& t = m.threads[i];
  if (!t.fiber) {
    if (m.idle.empty()) {
      m.fibers.push_back(std::make_unique<Fiber>());
      m.idle.push_back(m.fibers.back().get());
    }
    t.fiber = m.idle.back();
    m.idle.pop_back();
  }
  m.now = i;
  threadIdx = t.index;
  if (_setjmp(m.scheduler) != 0) return;
  Fiber& f = *t.fiber;
  if (f.started) _longjmp(f.resume, 1);
  f.started = true;
  getcontext(&f.start);
  f.start.uc_stack.ss_sp = f.stack.get();
  f.start.uc_stack.ss_size = kStack;
  f.start.uc_link = nullptr;
  makecontext(&f.start, entry, 0);
  setcontext(&f.start);
}

// Runs a warp until all its threads wait at the block's barrier or are done.
void run_warp(std::size_t first, std::size_t end) {
  Machine& m = machine;
  for (;;) {
    for (std::size_t i = first; i < end; ++i) {
      if (m.threads[i].state != State::ready) continue;
      resume(i);
      Thread& t = m.threads[i];
      if (t.state != State::done) continue;
      m.idle.push_back(t.fiber);
      t.fiber = nullptr;
    }
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
  }
}

void run_block() {
  Machine& m = machine;
  const std::size_t count = std::size_t{blockDim.x} * blockDim.y * blockDim.z;
  m.threads.assign(count, {});
  m.warps.assign((count + 31) / 32, {});
  for (std::size_t i = 0; i < count; ++i) {
    m.threads[i].index = {static_cast<unsigned>(i % blockDim.x),
                          static_cast<unsigned>(i / blockDim.x % blockDim.y),
                          static_cast<unsigned>(i / blockDim.x / blockDim.y)};
  }
  for (;;) {
    for (std::size_t w = 0; w < count; w += 32) run_warp(w, w + 32 < count ? w + 32 : count);
    bool waiting = false;
    for (Thread& t : m.threads) {
      if (t.state != State::at_block) continue;
      t.state = State::ready;
      waiting = true;
    }
    if (!waiting) return;
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
  Machine& m = machine;
  m.kernel = &kernel;
  m.shared.assign((shared + 7) / 8 + 2, 0xa5a5a5a5a5a5a5a5ull);
  gridDim = grid;
  blockDim = block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        run_block();
      }
    }
  }
}

void* dynamic_shared() {
  auto at = reinterpret_cast<std::uintptr_t>(machine.shared.data());
  return reinterpret_cast<void*>((at + 15) / 16 * 16);
}

void block_barrier() { yield(State::at_block); }
void warp_barrier() { yield(State::at_warp); }
unsigned lane() { return static_cast<unsigned>(machine.now % 32); }
unsigned long long* warp_slots() { return machine.warps[machine.now / 32].slots; }

}  // namespace emulated
