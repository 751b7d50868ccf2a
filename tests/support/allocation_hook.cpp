#include "tests/support/allocation_hook.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "core/to_size.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BALLAST_NO_ALLOCATION_HOOK
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BALLAST_NO_ALLOCATION_HOOK
#endif
#endif

namespace ballast::allocation_hook {
namespace {

std::atomic<bool> armed{false};
std::atomic<std::int64_t> heap_calls{0}, heap_bytes{0}, map_calls{0}, map_bytes{0}, frees{0};
std::atomic<std::int64_t> library_heap_calls{0}, library_map_calls{0};
std::atomic<bool> stack_taken{false};
std::array<void*, 24> stack;
std::atomic<int> stack_depth{0};

#ifndef BALLAST_NO_ALLOCATION_HOOK

// Whether the call came from a CUDA library: from the hooked function's caller on, the first frame
// outside the libraries of C and C++ decides.
bool asked_by_cuda(const void* caller) {
  std::array<void*, 16> frames;
  const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  const auto end = frames.begin() + depth;
  for (auto f = std::find(frames.begin(), end, caller); f != end; ++f) {
    Dl_info at = {};
    if (dladdr(*f, &at) == 0 || at.dli_fname == nullptr) continue;
    const std::string_view path = at.dli_fname;
    const std::string_view file = path.substr(path.rfind('/') + 1);
    if (file.starts_with("libcu") || file.starts_with("libnv")) return true;
    const std::string_view function = at.dli_sname ? at.dli_sname : "";
    if (function.starts_with("_Znw") || function.starts_with("_Zna")) continue;  // operator new
    if (!file.starts_with("libstdc++.") && !file.starts_with("libc.")) return false;
  }
  return false;
}

void count(std::atomic<std::int64_t>& calls, std::atomic<std::int64_t>& bytes, std::size_t size,
           const void* caller) {
  if (!armed.load(std::memory_order_relaxed)) return;
  if (asked_by_cuda(caller)) {
    (&calls == &heap_calls ? library_heap_calls : library_map_calls) += 1;
    return;
  }
  calls.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(static_cast<std::int64_t>(size), std::memory_order_relaxed);
  if (!stack_taken.exchange(true)) {
    stack_depth = backtrace(stack.data(), static_cast<int>(stack.size()));
  }
}

#endif

std::string stack_text() {
  std::string text;
  char** const names = backtrace_symbols(stack.data(), stack_depth);
  for (int i = 0; names != nullptr && i < stack_depth; ++i) text += std::string(names[i]) + "\n";
  std::free(names);
  return text;
}

}  // namespace

const char* missing() {
#ifdef BALLAST_NO_ALLOCATION_HOOK
  return "allocations are not counted in sanitizer builds: the sanitizer owns malloc";
#else
  return nullptr;
#endif
}

void arm() {
  backtrace(stack.data(), 1);  // loads the unwinder, which allocates the first time
  for (auto* counter : {&heap_calls, &heap_bytes, &map_calls, &map_bytes, &frees,
                        &library_heap_calls, &library_map_calls}) {
    *counter = 0;
  }
  stack_depth = 0;
  stack_taken = false;
  armed = true;
}

Count disarm() {
  armed = false;
  Count c;
  c.heap_calls = heap_calls;
  c.heap_bytes = heap_bytes;
  c.map_calls = map_calls;
  c.map_bytes = map_bytes;
  c.frees = frees;
  c.library_heap_calls = library_heap_calls;
  c.library_map_calls = library_map_calls;
  if (stack_depth > 0) c.first = stack_text();
  return c;
}

}  // namespace ballast::allocation_hook

#ifndef BALLAST_NO_ALLOCATION_HOOK

// The C library's own entry points, under the names that are never replaced.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t n, std::size_t size);
void* __libc_realloc(void* p, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* p);
void* __sbrk(std::intptr_t increment);
}

namespace hook = ballast::allocation_hook;

namespace {

void* aligned(std::size_t alignment, std::size_t size, const void* caller) {
  hook::count(hook::heap_calls, hook::heap_bytes, size, caller);
  return __libc_memalign(alignment, size);
}

}  // namespace

extern "C" {

void* malloc(std::size_t size) {
  hook::count(hook::heap_calls, hook::heap_bytes, size, __builtin_return_address(0));
  return __libc_malloc(size);
}

void* calloc(std::size_t n, std::size_t size) {
  hook::count(hook::heap_calls, hook::heap_bytes, n * size, __builtin_return_address(0));
  return __libc_calloc(n, size);
}

void* realloc(void* p, std::size_t size) {
  hook::count(hook::heap_calls, hook::heap_bytes, size, __builtin_return_address(0));
  return __libc_realloc(p, size);
}

void free(void* p) {
  if (p != nullptr && hook::armed.load(std::memory_order_relaxed)) ++hook::frees;
  __libc_free(p);
}

void* memalign(std::size_t alignment, std::size_t size) {
  return aligned(alignment, size, __builtin_return_address(0));
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return aligned(alignment, size, __builtin_return_address(0));
}

int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0) {
    return EINVAL;
  }
  void* const p = aligned(alignment, size, __builtin_return_address(0));
  if (p == nullptr) return ENOMEM;
  *out = p;
  return 0;
}

void* mmap(void* address, std::size_t size, int prot, int flags, int fd, off_t offset) {
  hook::count(hook::map_calls, hook::map_bytes, size, __builtin_return_address(0));
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, size, prot, flags, fd, offset));
}

void* mmap64(void* address, std::size_t size, int prot, int flags, int fd, off_t offset) {
  return mmap(address, size, prot, flags, fd, offset);
}

void* mremap(void* old, std::size_t old_size, std::size_t size, int flags, ...) {
  void* target = nullptr;
  if ((flags & MREMAP_FIXED) != 0) {
    va_list rest;
    va_start(rest, flags);
    target = va_arg(rest, void*);
    va_end(rest);
  }
  hook::count(hook::map_calls, hook::map_bytes, size, __builtin_return_address(0));
  return reinterpret_cast<void*>(syscall(SYS_mremap, old, old_size, size, flags, target));
}

void* sbrk(std::intptr_t increment) {
  const auto grown = ballast::to_size(increment > 0 ? increment : 0);
  hook::count(hook::map_calls, hook::map_bytes, grown, __builtin_return_address(0));
  return __sbrk(increment);
}

}  // extern "C"

#endif  // BALLAST_NO_ALLOCATION_HOOK
