#pragma once

#include <cstddef>
#include <string>

#include "core/bytes.h"
#include "memory/machine.h"

namespace ballast {

class ThreadPool;

enum class HugePages { as_configured, requested };

// One anonymous region of host memory, the exact size rounded up to pages, zero at first. The
// planner hands out offsets into it; nothing else in a run allocates host memory of any size.
// Regions of 2 MiB and more start at a multiple of 2 MiB, so huge pages can back them from the
// first byte.
class Arena {
 public:
  static constexpr Bytes kHugeAlignment{2 << 20};

  Arena() = default;  // no memory
  // name is what messages call it: "device arena". The kernel only promises the memory here; pages
  // come with the first write or with prefault(). Fails with ErrorCode::refused.
  Arena(Bytes size, std::string name, HugePages huge_pages = HugePages::requested);
  ~Arena();
  Arena(Arena&& o) noexcept;
  Arena& operator=(Arena&& o) noexcept;

  std::byte* base() const { return base_; }  // nullptr when size() is 0
  Bytes size() const { return size_; }

  // Makes every page present, on all threads of the pool, so that no step waits for the kernel and
  // a shortage shows now. Contents stay; nobody else may write meanwhile. Refuses, instead of being
  // killed later, when the machine or its control group has less memory left than that.
  void prefault(ThreadPool& pool, const Machine& machine = read_machine());

 private:
  std::byte* base_ = nullptr;
  Bytes size_;
  std::string name_;
  bool present_ = false;
};

}  // namespace ballast
