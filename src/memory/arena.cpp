#include "memory/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/thread_pool.h"
#include "memory/budget.h"

namespace ballast {
namespace {

// Of Linux 5.14; the C library's headers may be older than the kernel that runs this.
constexpr int kPopulateWrite = 23;

[[noreturn]] void refuse(Bytes size, const std::string& name, const std::string& why,
                         const Machine& machine) {
  const auto left = available_memory(machine);
  std::vector<Advice> advice;
  if (left) {
    const Bytes fits = *left - std::min(*left, reserve_of(*left));
    advice = {{fmt::format("--ram {}MiB", fits.count >> 20), "plans the run within what is left"}};
  }
  fail(ErrorCode::refused,
       fmt::format("{} needs {} ({} bytes) of RAM: {}; available: {}", name, size, size.count, why,
                   left ? to_string(*left) : "unknown"),
       std::move(advice));
}

// Touches [begin, begin + size) and returns 0 or the errno of what went wrong.
int make_present(std::byte* begin, std::size_t size, std::size_t page) {
  if (madvise(begin, size, kPopulateWrite) == 0) return 0;
  if (errno != EINVAL) return errno;
  for (std::size_t at = 0; at < size; at += page) {  // an older kernel
    volatile std::byte* const p = begin + at;
    *p = *p;
  }
  return 0;
}

}  // namespace

Arena::Arena(Bytes size, std::string name, HugePages huge_pages) : name_(std::move(name)) {
  if (size.count == 0) return;
  const Machine machine = read_machine();
  const std::uint64_t page = machine.page.count;
  const std::uint64_t align = size < kHugeAlignment ? page : kHugeAlignment.count;
  // Half the address space is beyond any machine, and rounding it up stays in range.
  if (size.count > UINT64_MAX / 2) refuse(size, name_, "beyond the address space", machine);
  size_ = {round_up(size.count, page)};

  // Address space first, without access and so without commitment; then exactly our part of it.
  const std::size_t span = size_.count + align - page;
  void* const found = mmap(nullptr, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) refuse(size, name_, std::strerror(errno), machine);
  const auto begin = reinterpret_cast<std::uintptr_t>(found);
  const std::uintptr_t aligned = round_up(begin, align);
  const std::uintptr_t end = aligned + size_.count;
  if (aligned > begin) munmap(found, aligned - begin);
  if (begin + span > end) munmap(reinterpret_cast<void*>(end), begin + span - end);
  base_ = reinterpret_cast<std::byte*>(aligned);
  if (mprotect(base_, size_.count, PROT_READ | PROT_WRITE) != 0) {
    const int error = errno;
    munmap(base_, size_.count);
    refuse(size, name_, std::strerror(error), machine);
  }
  // Kernels without transparent huge pages say EINVAL; the arena works as well, only slower.
  if (huge_pages == HugePages::requested) madvise(base_, size_.count, MADV_HUGEPAGE);
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, size_.count);
}

Arena::Arena(Arena&& o) noexcept
    : base_(std::exchange(o.base_, nullptr)),
      size_(std::exchange(o.size_, {})),
      name_(std::move(o.name_)),
      present_(std::exchange(o.present_, false)) {}

Arena& Arena::operator=(Arena&& o) noexcept {
  Arena old(std::move(o));
  std::swap(base_, old.base_);
  std::swap(size_, old.size_);
  std::swap(name_, old.name_);
  std::swap(present_, old.present_);
  return *this;
}

void Arena::prefault(ThreadPool& pool, const Machine& machine) {
  if (size_.count == 0 || present_) return;
  const auto left = available_memory(machine);
  if (left && *left < size_) refuse(size_, name_, "more than is left", machine);
  // Small enough that threads finish together, and whole huge pages.
  constexpr std::uint64_t kPiece = 16 * kHugeAlignment.count;
  const auto pieces = static_cast<std::int64_t>(round_up(size_.count, kPiece) / kPiece);
  std::atomic<int> error{0};
  pool.parallel(pieces, [&](std::int64_t piece, int) {
    const std::uint64_t begin = static_cast<std::uint64_t>(piece) * kPiece;
    const std::uint64_t size = std::min(kPiece, size_.count - begin);
    const int failed = make_present(base_ + begin, size, machine.page.count);
    if (failed != 0) error = failed;
  });
  if (error != 0) refuse(size_, name_, std::strerror(error), machine);
  present_ = true;
}

}  // namespace ballast
