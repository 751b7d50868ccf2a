#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/bindings.h"
#include "plan/lane_schedule.h"
#include "plan/memory_plan.h"
#include "plan/program.h"

namespace ballast {

enum class Order : std::uint8_t {
  concurrent,  // one thread per lane: the real thing
  recorded,    // one thread, in recorded order
  random,      // one thread, any order that lanes and waits allow
};

// Poison and the NaN check need one thread (recorded or random order): they look at memory between
// instructions. Guards need the recorded order: in others a buffer may begin to live on the guard
// of one that is still used, which is no error.
struct RunnerDebug {
  Order order = Order::concurrent;
  std::uint32_t random_seed = 0;
  bool ignore_waits = false;  // to show that the waits are needed
  bool poison = false;        // temporaries are filled with NaN patterns at birth and at death
  bool check_guards = false;  // bytes behind every buffer (PlanOptions::guard_bytes) stay untouched
  bool check_nan = false;     // a NaN in what an instruction wrote ends the run with its name
};

// The orders of one thread, with their looks at memory between instructions.
class OneByOne {
 public:
  // All of these outlive it.
  OneByOne(const ProgramSet& set, const MemoryPlan& plan, const LaneSchedules& schedules,
           const ArenaBases& bases, const RunnerDebug& debug);

  // execute: runs one instruction to its end.
  void run(int program, const std::function<void(std::uint32_t instruction)>& execute);

 private:
  void run_random(int program, const std::function<void(std::uint32_t instruction)>& step) const;
  void before_instruction(std::uint32_t instruction, int program);
  void after_instruction(std::uint32_t instruction, int program);
  void check_written(const Instruction& instruction, Buffer b) const;
  void poison(const BufferSpec& root, int program);
  void fill_guards();

  const ProgramSet& set_;
  const MemoryPlan& plan_;
  const LaneSchedules& schedules_;
  const ArenaBases& bases_;
  RunnerDebug debug_;
  std::vector<std::uint32_t> uses_left_;  // by root buffer
};

}  // namespace ballast
