#pragma once

#include <cstdint>
#include <string>

// Counts what the whole process asks of the heap and the kernel while armed, on all threads. Linked
// into every test executable, where its malloc, mmap, ... take the place of the C library's;
// libstdc++'s operator new ends in malloc. Not seen: mmap and brk that the C library calls inside
// itself (thread stacks, growth of the heap: the malloc that led there is counted), and raw system
// calls.
//
//   SKIP_WITHOUT_ALLOCATION_HOOK();
//   allocation_hook::arm();
//   step();
//   const auto seen = allocation_hook::disarm();
//   EXPECT_EQ(seen.calls(), 0) << seen.first;
namespace ballast::allocation_hook {

struct Count {
  std::int64_t heap_calls = 0;  // malloc, calloc, realloc, aligned forms, operator new
  std::int64_t heap_bytes = 0;  // requested
  std::int64_t map_calls = 0;   // mmap, mremap, sbrk
  std::int64_t map_bytes = 0;
  std::int64_t frees = 0;  // free of a non-null pointer
  // What CUDA's libraries and driver asked for themselves: not in the numbers above.
  std::int64_t library_heap_calls = 0;
  std::int64_t library_map_calls = 0;
  std::string first;  // call stack of the first allocation of ours, for addr2line; empty when none

  std::int64_t calls() const { return heap_calls + map_calls; }
  std::int64_t bytes() const { return heap_bytes + map_bytes; }
};

// Why nothing can be counted in this build, or nullptr: the sanitizers have a malloc of their own.
const char* missing();

// Counting starts at zero. Not nested: one armed range at a time.
void arm();
Count disarm();

}  // namespace ballast::allocation_hook

#define SKIP_WITHOUT_ALLOCATION_HOOK() \
  if (const char* why = ::ballast::allocation_hook::missing()) GTEST_SKIP() << why
