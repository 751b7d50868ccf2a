#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "plan/bindings.h"
#include "plan/program_builder.h"
#include "tests/support/sample_tensor.h"
#include "tests/support/test_device.h"

namespace ballast::support {

// One program with every buffer at a place of its own, run instruction by instruction: what is left
// of recording when planning and packing are taken away.
class RecordedProgram {
 public:
  explicit RecordedProgram(int threads = 2) : pb(set_, "test"), pool_(threads) {
    set_.backend.threads = threads;
    set_.backend.device = test_device();
  }

  // A buffer that holds the tensor's values when the program starts.
  Buffer input(std::string_view name, const SampleTensor& t) {
    const Buffer b = pb.persistent(name, t.shape(), t.dtype(), Role::input);
    inputs_.push_back({b, t});
    return b;
  }

  void run(const StepValues& step = {}) {
    place();
    HighWater high_water;
    for (const Instruction& i : set_.programs.at(0).instructions) {
      const Bindings b(set_, offsets_, arenas_, i, step, test_stream(pool_), &high_water);
      if (i.prepare) i.prepare(b);
      i.run(b);
    }
  }

  SampleTensor value(Buffer b) const {
    device_memory_is_read();
    const BufferSpec& s = set_.spec(b);
    SampleTensor t(s.dtype, s.shape);
    check(s.strides == row_major(s.shape), "{} is read back as a whole", s.name);
    if (s.bytes > 0) {
      std::memcpy(t.view().data, arenas_.base[0] + offsets_[s.root.id] + s.offset, s.bytes);
    }
    return t;
  }

  const Instruction& instruction(std::size_t i) const {
    return set_.programs.at(0).instructions.at(i);
  }
  // What an instruction writes but for its scratch, which depends on the device.
  std::vector<Buffer> results(std::size_t i) const {
    std::vector<Buffer> all;
    for (const Buffer b : instruction(i).writes) {
      if (set_.spec(b).role != Role::workspace) all.push_back(b);
    }
    return all;
  }
  std::size_t instructions() const { return set_.programs.at(0).instructions.size(); }

 private:
  void place() {
    if (arena_) return;  // a second run goes on with the memory of the first
    std::uint64_t end = 0;
    for (std::uint32_t id = 0; id < set_.buffers.size(); ++id) {
      const BufferSpec& s = set_.spec(Buffer{id});
      offsets_.push_back(end);
      if (s.root.id == id) end += (s.bytes + 255) / 256 * 256;
    }
    arena_.reset(static_cast<std::byte*>(allocate_for_device(end + 256)));
    std::memset(arena_.get(), 0xff, end + 256);  // reading what nobody wrote gives NaN
    const auto misfit = reinterpret_cast<std::uintptr_t>(arena_.get()) % 256;
    arenas_.base[0] = arenas_.base[1] = arena_.get() + (256 - misfit) % 256;
    for (const auto& [b, t] : inputs_) {
      if (t.size() == 0) continue;
      check(t.view().contiguous(), "an input of a program is contiguous");
      std::memcpy(arenas_.base[0] + offsets_[b.id], t.view().data, t.view().bytes());
    }
  }

  ProgramSet set_;

 public:
  ProgramBuilder pb;

 private:
  ThreadPool pool_;
  std::vector<std::pair<Buffer, SampleTensor>> inputs_;
  std::vector<std::uint64_t> offsets_;
  // Not a vector: that goes through it byte by byte, and some programs have large workspaces.
  struct Free {
    void operator()(std::byte* p) const { free_for_device(p); }
  };
  std::unique_ptr<std::byte, Free> arena_;
  ArenaBases arenas_;
};

}  // namespace ballast::support
