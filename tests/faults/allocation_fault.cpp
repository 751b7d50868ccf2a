// Preloaded into a program: its n-th allocation fails (BALLAST_FAULT=alloc:ENOMEM:N, see fault.h).
// BALLAST_FAULT_COUNTS names a file that gets the number of allocations at the end. A library of
// its own: programs with a sanitizer bring another malloc and are run without this one. Allocations
// before main do not count: there the CUDA runtime registers its kernels and checks no result.

#include <dlfcn.h>

#include <cstdio>

#include "tests/faults/fault.h"

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
}

namespace {

using Main = int (*)(int, char**, char**);

Main real_main = nullptr;
bool in_main = false;
long calls = 0;  // atomically
ballast::faults::Fault fault;

int counted_main(int argc, char** argv, char** environment) {
  fault = ballast::faults::read_fault();
  in_main = true;
  return real_main(argc, argv, environment);
}

bool fails() {
  if (!in_main) return false;
  const long n = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  if (!fault.concerns("alloc") || !fault.hits(n)) return false;
  ballast::faults::mark_fired();
  errno = ENOMEM;
  return true;
}

struct Report {
  ~Report() {
    char path[4096];
    if (!ballast::faults::find_counts_path(path)) return;
    in_main = false;
    const long n = __atomic_load_n(&calls, __ATOMIC_RELAXED);
    if (std::FILE* const file = std::fopen(path, "w")) {
      std::fprintf(file, "alloc %ld\n", n);
      std::fclose(file);
    }
  }
} report;

}  // namespace

extern "C" {

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*rtld_fini)(), void* stack_end) {
  const auto real =
      reinterpret_cast<decltype(&__libc_start_main)>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  real_main = main;
  return real(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

void* malloc(std::size_t size) { return fails() ? nullptr : __libc_malloc(size); }
void* calloc(std::size_t count, std::size_t size) {
  return fails() ? nullptr : __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  return fails() ? nullptr : __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  return fails() ? nullptr : __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  void* const made = memalign(alignment, size);
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}

}  // extern "C"
