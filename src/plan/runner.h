#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/stopwatch.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "memory/communicator.h"
#include "memory/disk_file.h"
#include "memory/gpu.h"
#include "memory/scratch_file.h"
#include "plan/bindings.h"
#include "plan/gpu_lanes.h"
#include "plan/lane_progress.h"
#include "plan/lane_schedule.h"
#include "plan/lane_threads.h"
#include "plan/memory_plan.h"
#include "plan/preparation.h"
#include "plan/program.h"
#include "plan/ring_allocator.h"
#include "plan/run_memory.h"
#include "plan/runner_debug.h"

namespace ballast {

struct RunnerOptions {
  int disk_readers = kDiskReaders;  // reads and writes in flight on the disk lane
  // Where the file for buffers on disk is made, if there are any; empty: the folder for temporary
  // files.
  std::string scratch_folder = {};
  RunnerDebug debug = {};
  // By ProgramSet::groups; they outlive the runner. All ranks make their runners at the same time:
  // those that would wait for each other in vain fail there (rank_agreement.h). A run that fails
  // aborts them, so that other ranks do not wait for this one.
  std::vector<Communicator*> communicators = {};
  Clock now = std::chrono::steady_clock::now;  // for the times of lanes on the processors
};

// Of the GPU's queues by its own clock: `waiting` of the compute queue is the exposed stall. Of a
// lane with several workers the mean.
struct LaneTime {
  double busy = 0;     // seconds inside instructions
  double waiting = 0;  // seconds waiting for other lanes
};

// Executes the programs of a set exactly as planned. Owns the arenas; run() allocates nothing. What
// each lane does is its schedule (lane_schedule.h), how far it is its progress (lane_progress.h);
// threads wait between runs (lane_threads.h), and libraries prepare beside them (preparation.h). On
// the GPU backend (open_gpu() first) the device arena is GPU memory, the host arena is pinned, and
// three of the lanes are queues that their threads fill ahead of time.
class Runner {
 public:
  Runner(const ProgramSet& set, const MemoryPlan& plan, const RunnerOptions& options = {});
  // memory: by open_memory() with these options, and as large as the plan's.
  Runner(const ProgramSet& set, const MemoryPlan& plan, const RunnerOptions& options,
         RunMemory memory);
  static RunMemory open_memory(Device device, Bytes device_bytes, Bytes host_bytes,
                               const RunnerOptions& options = {});
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void run(int program, const StepValues& step = {});
  void run(std::string_view program, const StepValues& step = {}) {
    run(set_.program_index(program), step);
  }
  // The same while another thread does something else: writes buffers, say, that the program does
  // not touch.
  void run_beside(std::string_view program, const std::function<void()>& other);

  // Memory of a persistent buffer, between runs: to give inputs and to take results.
  // Device buffers of the GPU backend cannot be touched by the host, and buffers on disk are no
  // memory: see read() and write(). What is in a ring's buffers nobody may ask.
  TensorView view(Buffer b);
  bool host_can_touch(Buffer b) const;
  const BufferSpec& spec(Buffer b) const { return set_.spec(b); }
  // The same by copying, wherever it is; b is contiguous.
  void write(Buffer b, std::span<const std::byte> from);
  void read(Buffer b, std::span<std::byte> to);
  // Of a part of it, from byte `first` on.
  void write_part(Buffer b, std::uint64_t first, std::span<const std::byte> from);
  void read_part(Buffer b, std::uint64_t first, std::span<std::byte> to);
  // Highest byte of the arena, or of the scratch file, that an instruction was given so far.
  Bytes high_water(Tier t) const { return {high_water_.top[to_size(t)]}; }
  const std::array<LaneTime, kLaneCount>& lane_times() const { return times_; }  // of the last run
  // On a GPU, from the next run on: its clock is read around each compute instruction, which costs
  // a few microseconds each.
  void time_instructions(bool on);
  // Name and seconds of every compute instruction of the last run, when they were timed.
  std::vector<std::pair<std::string_view, double>> compute_times() const;
  // Of a program's compute instructions those that a GPU gets by recordings since the second run.
  std::uint32_t repeated_instructions(int program) const;
  ThreadPool& compute_threads() { return compute_; }  // of the processors

  // Seconds that were waited for memory, and by the first runs for what libraries prepare, which
  // goes on beside them in the order in which it is needed. To be asked after a run that needs all.
  struct Opening {
    double memory = 0, prepared = 0, waited = 0;
    std::map<std::string, double> by_operation;  // of what was prepared
  };
  Opening opening() const;

 private:
  struct Worker {
    HighWater high_water;
    LaneTime time;
  };
  // One hand's work on a lane in a run.
  struct LaneRun {
    Lane lane;
    int program;
    std::size_t worker;
    bool queue;           // of the GPU
    bool played = false;  // what stands before the next instruction is a recording
  };

  void run_program(int program);
  void run_concurrent(int program);
  void run_one_by_one(int program);
  void run_lane(Lane lane, int program, std::size_t worker);
  bool wait_for_turn(const LaneRun& run, std::uint32_t place);
  bool wait_all(const LaneRun& run, std::uint32_t instruction);
  bool passed(int program, const Wait& wait) const;
  std::uint32_t run_next(LaneRun& run, std::uint32_t place);
  // Whether the instruction asked for the step's values.
  bool execute(InstructionPart what, Lane lane, int program, std::size_t worker = 0);
  ThreadPool* pool_of(Lane lane);
  std::string progress_on_gpu(int program) const;
  void capture_segments(int program);
  void abort_exchanges() noexcept;
  void read_gpu_times();

  void await_pinned(int program);
  bool needs_pinned(int program) const;
  void open_scratch();
  std::uint64_t check_part(Buffer b, std::uint64_t first, std::size_t bytes) const;

  const ProgramSet& set_;
  const MemoryPlan& plan_;
  RunnerOptions options_;
  RunMemory memory_;
  double memory_seconds_ = 0;  // Opening::memory
  ScratchFile scratch_;        // the disk tier
  RingAllocator rings_;
  ArenaBases bases_;
  ThreadPool compute_, copier_;  // the lanes that copy and read work on their own threads alone
  StepValues step_;
  HighWater high_water_;
  LaneSchedules schedules_;
  LaneProgress progress_;
  std::array<std::vector<Worker>, kLaneCount> hands_;
  std::array<LaneTime, kLaneCount> times_{};
  std::optional<GpuLanes> gpu_;      // the GPU backend only
  std::vector<std::uint32_t> runs_;  // by program, of the GPU backend
  int program_ = -1;                 // of the last run
  std::optional<OneByOne> one_by_one_;
  // The last members: they work on all others.
  std::optional<LaneThreads> threads_;  // Order::concurrent only, else one_by_one_
  std::optional<Preparation> preparation_;
};

}  // namespace ballast
