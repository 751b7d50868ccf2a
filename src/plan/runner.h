#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "core/to_size.h"
#include "memory/disk_file.h"
#include "memory/gpu.h"
#include "memory/scratch_file.h"
#include "plan/bindings.h"
#include "plan/gpu_lanes.h"
#include "plan/memory_plan.h"
#include "plan/program.h"
#include "plan/ring_allocator.h"
#include "plan/run_memory.h"

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

struct RunnerOptions {
  int disk_readers = kDiskReaders;  // reads and writes in flight on the disk lane
  // Where the file for buffers on disk is made, if there are any; empty: the folder for temporary
  // files.
  std::string scratch_folder = {};
  RunnerDebug debug = {};
};

// Of the GPU's queues by its own clock: `waiting` of the compute queue is the exposed stall. Of a
// lane with several workers the mean.
struct LaneTime {
  double busy = 0;     // seconds inside instructions
  double waiting = 0;  // seconds waiting for other lanes
};

// Executes the programs of a set exactly as planned. Owns the arenas and the lane threads; run()
// allocates nothing. On the GPU backend (open_gpu() first) the device arena is GPU memory, the host
// arena is pinned, and three of the lanes are queues that their threads fill ahead of time.
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
  const Opening& opening() const {
    if (preparing_.valid()) preparing_.wait();
    return opening_;
  }

 private:
  // The disk lane has as many as there are reads in flight, so that the disk's queue stays as deep
  // while one of them ends. The others have one.
  static constexpr std::size_t kMaxWorkers = 32;
  static constexpr std::uint32_t kReorderWindow = 64;  // how far one may be ahead of one that lasts
  struct Worker {
    HighWater high_water;
    LaneTime time;
    std::thread thread;  // none for compute, which is the caller's
  };
  static constexpr std::uint32_t kAllParts = ~0u;
  struct Part {
    std::uint32_t instruction = 0, part = kAllParts;
  };
  struct LaneState {
    std::vector<std::vector<std::uint32_t>> code;  // by program: indices of its instructions
    // With several workers, by program: the parts of the instructions, which is what they take; how
    // many there are up to the end of each instruction; how many have to be done before each part.
    std::vector<std::vector<Part>> parts;
    std::vector<std::vector<std::uint32_t>> parts_until, after;
    std::vector<std::vector<bool>> awaited;  // by program and place in code: by another lane
    std::mutex take_mutex;  // of the worker that takes the next part and waits for what it needs
    std::atomic<bool> worker_waits{false};  // ... for parts before it
    std::atomic<std::uint32_t> taken{0}, done{0};
    std::array<bool, kReorderWindow> finished{};  // of those that are not in `done`, by place
    std::vector<Worker> workers;
  };

  void start_lanes();
  void stop_lanes();
  void run_concurrent(int program);
  void lane_main(Lane lane, std::size_t worker);
  void run_lane(Lane lane, int program, std::size_t worker);
  bool wait_all(Lane lane, int program, std::uint32_t instruction, bool on_gpu);
  bool passed(int program, const Wait& wait) const;
  bool wait_for(const std::atomic<std::uint32_t>& count, std::uint32_t least);
  void raise(std::atomic<std::uint32_t>& count, std::uint32_t to);
  void finish(LaneState& lane, int program, std::uint32_t place);
  bool wait_for_parts(LaneState& lane, int program, std::uint32_t place);
  void order_workers(LaneState& lane, std::size_t program) const;
  bool share_bytes(const Instruction& a, const Instruction& b) const;
  void prepare();
  void prepare_share(std::size_t share);
  void await_prepared(int program, std::uint32_t instruction);
  void await_pinned(int program);
  bool needs_pinned(int program) const;
  std::string progress_on_gpu(int program) const;
  void capture_segments(int program);
  void open_scratch();
  std::uint64_t check_part(Buffer b, std::uint64_t first, std::size_t bytes) const;
  void read_gpu_times();
  // Whether the instruction asked for the step's values.
  bool execute(Part what, Lane lane, int program, std::size_t worker = 0);
  ThreadPool* pool_of(Lane lane);
  void stop_all(std::exception_ptr error);

  void run_one_by_one(int program);
  void before_instruction(std::uint32_t instruction, int program);
  void after_instruction(std::uint32_t instruction, int program);
  void fill_guards();
  void poison(const BufferSpec& root, int program);

  const ProgramSet& set_;
  const MemoryPlan& plan_;
  RunnerOptions options_;
  RunMemory memory_;
  Opening opening_;
  ScratchFile scratch_;  // the disk tier
  RingAllocator rings_;
  ArenaBases bases_;
  ThreadPool compute_, copier_;  // the lanes that copy and read work on their own threads alone
  StepValues step_;
  HighWater high_water_;
  std::array<LaneState, kLaneCount> lanes_;
  std::array<LaneTime, kLaneCount> times_{};
  std::optional<GpuLanes> gpu_;           // the GPU backend only
  std::vector<std::uint32_t> runs_;       // by program, of the GPU backend
  std::vector<std::uint32_t> uses_left_;  // by root buffer, one-by-one orders only

  std::mutex mutex_;
  std::condition_variable progress_, start_;
  std::uint64_t generation_ = 0;
  int program_ = -1;
  int lanes_busy_ = 0;
  bool quit_ = false;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  // What libraries prepare goes on in two threads, each in the order of programs and instructions:
  // where each of them is, and everything before is prepared.
  std::array<std::atomic<std::uint64_t>, 2> prepared_until_{};
  enum class Preparing : std::uint8_t { done, under_way, failed };
  std::atomic<Preparing> preparation_{Preparing::done};
  std::mutex preparing_mutex_;
  std::condition_variable prepared_more_;
  std::shared_future<void> preparing_;  // the last member: it works on all others
};

}  // namespace ballast
