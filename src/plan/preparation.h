#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <string>

#include "plan/bindings.h"
#include "plan/gpu_lanes.h"
#include "plan/memory_plan.h"
#include "plan/program.h"

namespace ballast {

// What libraries make for certain sizes (Instruction::prepare) takes a second or more: it goes on
// beside the programs that load weights, which have nothing of the kind, and beside the first that
// has, as far as nobody waits for it: a backward pass comes long after its forward pass.
class Preparation {
 public:
  enum class When : std::uint8_t { beside_runs, now };
  // All of these outlive it. gpu: null where there is none, and nothing to prepare.
  Preparation(const ProgramSet& set, const MemoryPlan& plan, const ArenaBases& bases, GpuLanes* gpu,
              ThreadPool* pool, When when);
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // By the compute lane, before it runs an instruction. Throws what ended the preparation.
  void await(int program, std::uint32_t instruction);

  struct Times {
    double seconds = 0;                          // that all of it took
    double waited = 0;                           // that await() took
    std::map<std::string, double> by_operation;  // seconds
  };
  // After the last of it.
  const Times& times() const;

 private:
  void prepare_all();
  void prepare_share(std::size_t share);
  void prepare_beside();

  const ProgramSet& set_;
  const MemoryPlan& plan_;
  const ArenaBases& bases_;
  GpuLanes* gpu_;
  ThreadPool* pool_;
  StepValues step_;  // nobody asks for them
  Times times_;
  // Two threads, each in the order of programs and instructions: where each of them is, and
  // everything before is prepared.
  std::array<std::atomic<std::uint64_t>, 2> prepared_until_{};
  enum class State : std::uint8_t { done, under_way, failed };
  std::atomic<State> state_{State::done};
  std::mutex mutex_;
  std::condition_variable prepared_more_;
  std::shared_future<void> preparing_;  // the last member: it works on all others
};

}  // namespace ballast
