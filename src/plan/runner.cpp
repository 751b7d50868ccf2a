#include "plan/runner.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"

namespace ballast {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

constexpr std::size_t index(Lane l) { return static_cast<std::size_t>(l); }

}  // namespace

Runner::Runner(const ProgramSet& set, const MemoryPlan& plan, const RunnerOptions& options)
    : set_(set),
      plan_(plan),
      options_(options),
      device_(plan.peak_of(Tier::device), "device arena"),
      host_(plan.peak_of(Tier::host), "host arena"),
      compute_(set.backend.threads),
      readers_(options.disk_readers),
      copier_(1) {
  check(set.executable, "a program recorded for planning cannot be run");
  check(options.debug.order != Order::concurrent ||
            !(options.debug.poison || options.debug.check_nan),
        "poison and NaN checks need recorded or random order");
  check(options.debug.order == Order::recorded || !options.debug.check_guards,
        "guards need the recorded order");
  bases_.base[0] = device_.base();
  bases_.base[1] = host_.base();
  for (LaneState& lane : lanes_) lane.code.resize(set.programs.size());
  for (std::size_t p = 0; p < set.programs.size(); ++p) {
    const auto& code = set.programs[p].instructions;
    for (std::uint32_t i = 0; i < code.size(); ++i) {
      lanes_[index(code[i].lane)].code[p].push_back(i);
    }
  }
  uses_left_.resize(set.buffers.size());
  if (options.debug.check_guards) fill_guards();
  if (options.debug.order != Order::concurrent) return;
  for (int l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    const bool used = std::ranges::any_of(lanes_[index(lane)].code,
                                          [](const auto& code) { return !code.empty(); });
    if (lane != Lane::compute && used) {
      lanes_[index(lane)].thread = std::thread([this, lane] { lane_main(lane); });
    }
  }
}

Runner::~Runner() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  start_.notify_all();
  for (LaneState& lane : lanes_) {
    if (lane.thread.joinable()) lane.thread.join();
  }
}

TensorView Runner::view(Buffer b) {
  const BufferSpec& s = set_.spec(b);
  check(s.program == kPersistent, "{} is a temporary: it has no memory between runs", set_.name(b));
  return TensorView(
      bases_.base[static_cast<std::size_t>(s.tier)] + plan_.offset[s.root.id] + s.offset, s.dtype,
      s.shape, s.strides, s.tier == Tier::device ? set_.backend.device : Device::cpu);
}

void Runner::run(int program, const StepValues& step) {
  step_ = step;
  times_ = {};
  for (LaneState& lane : lanes_) lane.done.store(0, std::memory_order_relaxed);
  if (options_.debug.order == Order::concurrent) {
    run_concurrent(program);
  } else {
    run_one_by_one(program);
  }
  for (LaneState& lane : lanes_) high_water_.include(lane.high_water);
}

void Runner::execute(std::uint32_t instruction, Lane lane, int program) {
  const Instruction& ins =
      set_.programs[static_cast<std::size_t>(program)].instructions[instruction];
  LaneState& state = lanes_[index(lane)];
  const Stream stream{.pool = lane == Lane::compute ? &compute_
                              : lane == Lane::disk  ? &readers_
                                                    : &copier_,
                      .native = nullptr};
  try {
    ins.run(Bindings(set_, plan_.offset, bases_, ins, step_, stream, &state.high_water));
  } catch (Error& e) {
    e.add_trail(fmt::format("running {} of program {}", ins.name,
                            set_.programs[static_cast<std::size_t>(program)].name));
    throw;
  }
}

void Runner::run_concurrent(int program) {
  {
    const std::lock_guard lock(mutex_);
    failed_.store(false);
    error_ = nullptr;
    program_ = program;
    lanes_busy_ = 0;
    for (const LaneState& lane : lanes_) lanes_busy_ += lane.thread.joinable() ? 1 : 0;
    ++generation_;
  }
  start_.notify_all();
  run_lane(Lane::compute, program);
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [this] { return lanes_busy_ == 0; });
  if (error_) {
    const std::exception_ptr error = std::exchange(error_, nullptr);
    lock.unlock();
    std::rethrow_exception(error);
  }
}

void Runner::lane_main(Lane lane) {
  std::uint64_t seen = 0;
  for (;;) {
    int program = -1;
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return quit_ || generation_ != seen; });
      if (quit_) return;
      seen = generation_;
      program = program_;
    }
    run_lane(lane, program);
    const std::lock_guard lock(mutex_);
    --lanes_busy_;
    progress_.notify_all();
  }
}

void Runner::run_lane(Lane lane, int program) {
  LaneState& state = lanes_[index(lane)];
  LaneTime& time = times_[index(lane)];
  const Waits& waits = plan_.waits[static_cast<std::size_t>(program)];
  try {
    for (const std::uint32_t i : state.code[static_cast<std::size_t>(program)]) {
      Clock::time_point begin = Clock::now();
      for (std::uint32_t w = waits.begin[i]; w < waits.begin[i + 1]; ++w) {
        if (!options_.debug.ignore_waits && !wait_for(waits.all[w])) return;
      }
      if (failed_.load(std::memory_order_relaxed)) return;
      time.waiting += seconds_since(begin);
      begin = Clock::now();
      execute(i, lane, program);
      time.busy += seconds_since(begin);
      {
        const std::lock_guard lock(mutex_);
        state.done.fetch_add(1, std::memory_order_release);
      }
      progress_.notify_all();
    }
  } catch (...) {
    stop_all(std::current_exception());
  }
}

// False when another lane failed: the run is over.
bool Runner::wait_for(const Wait& wait) {
  const LaneState& other = lanes_[index(wait.lane)];
  if (other.done.load(std::memory_order_acquire) >= wait.count) return true;
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] {
    return failed_.load() || other.done.load(std::memory_order_acquire) >= wait.count;
  });
  return !failed_.load();
}

void Runner::stop_all(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    failed_.store(true);
    if (!error_) error_ = std::move(error);
  }
  progress_.notify_all();
}

}  // namespace ballast
