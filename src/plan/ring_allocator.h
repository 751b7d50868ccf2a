#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/memory_plan.h"
#include "plan/program.h"

namespace ballast {

// Which memory a buffer of a ring is (ProgramSet::rings) is decided when it is filled: of what is
// empty, that which was filled last, since a disk may read faster into memory that was just used
// (decision 50). The rest of the ring is for times when what was read cannot go on. Two buffers
// change places only while nobody uses either, so waits that were planned for fixed places are
// enough.
class RingAllocator {
 public:
  RingAllocator(const ProgramSet& set, const MemoryPlan& plan);

  // Where a root is in its tier, which is where it was planned unless it belongs to a ring.
  std::uint64_t offset(Buffer root, std::uint64_t planned) const;

  // A run begins: nothing is in use.
  void begin(int program);
  // An instruction of the disk lane begins, in the lane's order, and what it waits for is done.
  // passed(wait): whether other work is done, without waiting for it.
  void before(int program, std::uint32_t instruction,
              const std::function<bool(const Wait&)>& passed);

 private:
  struct Fill {
    std::uint32_t instruction, buffer;
    Wait emptied;  // count 0: by nobody in this program
  };
  struct Place {
    std::uint64_t offset = 0;
    std::uint64_t filled = 0;  // by the fill with this number, over all runs
    bool used = false;         // as far as is known, until `emptied`
    Wait emptied = {};
  };
  struct Ring {
    std::uint32_t begin, end;  // of buffers_ and places_
  };
  void fill(const Fill& f, const std::function<bool(const Wait&)>& passed);
  void record_emptied(const Ring& ring, const std::function<bool(const Wait&)>& passed);
  std::vector<Fill> fills_of(const ProgramSet& set, const Program& program) const;
  std::uint32_t index_of(Buffer root) const;  // buffers_.size(): in no ring

  std::vector<Ring> rings_;
  std::vector<Buffer> buffers_;
  std::vector<Place> places_;             // by buffer
  std::vector<std::vector<Fill>> fills_;  // by program, in the lane's order
  std::size_t next_ = 0;                  // of the program that runs
  std::uint64_t filled_ = 0;
};

}  // namespace ballast
