#include "plan/preparation.h"

#include <algorithm>

#include "core/error.h"
#include "core/start_thread.h"
#include "core/stopwatch.h"
#include "core/to_size.h"

namespace ballast {
namespace {

// Attention is cuDNN's and most of the rest cuBLASLt's: neither waits for the other.
std::size_t share_of(const Instruction& i) {
  return i.cost.work == Work::attention || i.cost.work == Work::attention_backward ? 0 : 1;
}

// In the order in which instructions are prepared.
std::uint64_t place_of(std::size_t program, std::size_t instruction) {
  return std::uint64_t{program} << 32 | instruction;
}

}  // namespace

Preparation::Preparation(const ProgramSet& set, const MemoryPlan& plan, const ArenaBases& bases,
                         GpuLanes* gpu, ThreadPool* pool, When when)
    : set_(set), plan_(plan), bases_(bases), gpu_(gpu), pool_(pool) {
  const bool any = std::ranges::any_of(set.programs, [](const Program& p) {
    return std::ranges::any_of(p.instructions,
                               [](const Instruction& i) { return static_cast<bool>(i.prepare); });
  });
  if (!any) return;
  check(gpu != nullptr, "there is something to prepare, but no GPU");
  if (when == When::now) {
    prepare_all();
  } else {
    prepare_beside();
  }
}

void Preparation::prepare_all() {
  const Stopwatch watch;
  auto others = start_task("preparing kernels", [this] { prepare_share(1); });
  prepare_share(0);
  others.get();
  times_.seconds = watch.seconds();
}

void Preparation::prepare_beside() {
  state_ = State::under_way;
  const auto end_as = [this](State how) {
    {
      const std::lock_guard lock(mutex_);
      state_ = how;
    }
    prepared_more_.notify_all();
  };
  preparing_ = start_task("preparing kernels", [this, end_as] {
                 try {
                   prepare_all();
                 } catch (...) {
                   end_as(State::failed);
                   throw;
                 }
                 end_as(State::done);
               }).share();
}

void Preparation::prepare_share(std::size_t share) {
  use_gpu();
  std::map<std::string, double> seconds;
  const auto is_at = [&](std::uint64_t place) {
    {
      const std::lock_guard lock(mutex_);
      prepared_until_[share].store(place, std::memory_order_release);
    }
    prepared_more_.notify_all();
  };
  for (std::size_t p = 0; p < set_.programs.size(); ++p) {
    const Program& program = set_.programs[p];
    for (std::size_t n = 0; n < program.instructions.size(); ++n) {
      const Instruction& i = program.instructions[n];
      if (!i.prepare || share_of(i) != share) continue;
      is_at(place_of(p, n));
      const Stopwatch one;
      while_doing(fmt::format("preparing {} of program {}", i.name, program.name), [&] {
        i.prepare(
            Bindings(set_, plan_.offset, bases_, i, step_, gpu_->stream(i.lane, pool_), nullptr));
      });
      seconds[std::string(i.name.substr(i.name.rfind('.') + 1))] += one.seconds();
    }
  }
  is_at(place_of(set_.programs.size(), 0));
  const std::lock_guard lock(mutex_);
  for (const auto& [name, took] : seconds) times_.by_operation[name] += took;
}

void Preparation::await(int program, std::uint32_t instruction) {
  if (state_.load(std::memory_order_acquire) == State::done) return;
  const auto p = to_size(program);
  const Instruction& i = set_.programs[p].instructions[instruction];
  if (!i.prepare) return;
  const std::atomic<std::uint64_t>& until = prepared_until_[share_of(i)];
  const std::uint64_t mine = place_of(p, instruction);
  if (until.load(std::memory_order_acquire) > mine) return;
  const Stopwatch watch;
  {
    std::unique_lock lock(mutex_);
    prepared_more_.wait(lock, [&] { return until > mine || state_.load() != State::under_way; });
  }
  times_.waited += watch.seconds();
  if (until <= mine) preparing_.get();  // throws what ended it
}

const Preparation::Times& Preparation::times() const {
  if (preparing_.valid()) preparing_.wait();
  return times_;
}

}  // namespace ballast
