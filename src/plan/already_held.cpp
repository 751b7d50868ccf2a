#include "plan/already_held.h"

#include <malloc.h>

#include <atomic>

#include "memory/process_memory.h"
#include "plan/process_lines.h"

// Of a sanitizer's runtime, where one is linked.
extern "C" {
__attribute__((weak)) void __asan_init();  // NOLINT(bugprone-reserved-identifier)
__attribute__((weak)) void __tsan_init();  // NOLINT(bugprone-reserved-identifier)
}

namespace ballast {
namespace {

bool sanitized() { return &__asan_init != nullptr || &__tsan_init != nullptr; }

std::atomic<std::uint64_t> held{0};

}  // namespace

Bytes already_held() { return {held}; }

void measure_already_held(Bytes own) {
  if (sanitized()) return;
  malloc_trim(0);  // what earlier calls gave back is not held
  const auto process = process_memory();
  if (!process) return;
  const Bytes ours = own + kProcessBaseline, total = process->total();
  const std::uint64_t now = total > ours ? (total - ours).count : 0;
  static std::atomic<bool> measured{false};
  const std::uint64_t before = held;
  const std::uint64_t change = now > before ? now - before : before - now;
  if (!measured.exchange(true) || change > kHeldSlack.count) held = now;
}

}  // namespace ballast
