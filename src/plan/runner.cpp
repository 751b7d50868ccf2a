#include "plan/runner.h"

#include <algorithm>
#include <new>

#include "core/error.h"
#include "core/lane_activity.h"
#include "core/start_thread.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "plan/checked_reads.h"
#include "plan/display_names.h"
#include "plan/live_buffers.h"
#include "plan/phase.h"

namespace ballast {
namespace {

constexpr std::size_t index(Lane l) { return to_size(l); }

}  // namespace

Runner::Runner(const ProgramSet& set, const MemoryPlan& plan, const RunnerOptions& options)
    : Runner(set, plan, options,
             open_memory(set.backend.device, plan.peak_of(Tier::device), plan.peak_of(Tier::host),
                         options)) {}

Runner::Runner(const ProgramSet& set, const MemoryPlan& plan, const RunnerOptions& options,
               RunMemory memory)
    : set_(set),
      plan_(plan),
      options_(options),
      memory_(std::move(memory)),
      rings_(set, plan),
      compute_(set.backend.threads),
      copier_(1) {
  check(set.executable, "a program recorded for planning cannot be run");
  check(options.debug.order != Order::concurrent ||
            !(options.debug.poison || options.debug.check_nan),
        "poison and NaN checks need recorded or random order");
  check(options.debug.order == Order::recorded || !options.debug.check_guards,
        "guards need the recorded order");
  for (const Tier t : {Tier::device, Tier::host}) {
    check(memory_.size(t) >= plan.peak_of(t), "{} of {} for a plan of {}", memory_.size(t),
          memory_name(t, set.backend.device == Device::cpu), plan.peak_of(t));
    bases_.base[to_size(t)] = memory_.base(t);
  }
  if (options.debug.order == Order::concurrent && !options.debug.ignore_waits) {
    bases_.rings = &rings_;
  }
  if (plan.peak_of(Tier::disk).count > 0) open_scratch();
  if (set.backend.device == Device::cuda) gpu_.emplace(set, plan);
  for (int l = 0; l < kLaneCount; ++l) {
    LaneState& lane = lanes_[to_size(l)];
    lane.code.resize(set.programs.size());
    lane.parts.resize(set.programs.size());
    lane.parts_until.resize(set.programs.size());
    lane.after.resize(set.programs.size());
    lane.awaited.resize(set.programs.size());
  }
  std::size_t max_splits = 1;  // that a program has for the disk lane
  for (std::size_t p = 0; p < set.programs.size(); ++p) {
    const auto& code = set.programs[p].instructions;
    for (std::uint32_t i = 0; i < code.size(); ++i) {
      lanes_[index(code[i].lane)].code[p].push_back(i);
    }
    std::size_t parts = 0;
    for (const std::uint32_t i : lanes_[index(Lane::disk)].code[p]) parts += code[i].splits;
    max_splits = std::max(max_splits, parts);
    for (LaneState& lane : lanes_) lane.awaited[p].resize(lane.code[p].size());
    for (const Wait& w : plan.waits[p].all) lanes_[index(w.lane)].awaited[p][w.count - 1] = true;
  }
  for (LaneState& lane : lanes_) {
    const auto readers = to_size(std::max(1, options.disk_readers));
    const bool disk = &lane == &lanes_[index(Lane::disk)];
    lane.workers = std::vector<Worker>(disk ? std::min({max_splits, readers, kMaxWorkers}) : 1);
    for (std::size_t p = 0; p < set.programs.size(); ++p) order_workers(lane, p);
  }
  uses_left_.resize(set.buffers.size());
  runs_.resize(set.programs.size());
  prepare();
  const Stopwatch watch;
  memory_.await_present();
  opening_.memory = watch.seconds();
  if (options.debug.check_guards) fill_guards();
  if (options.debug.order != Order::concurrent) return;
  try {
    start_lanes();
  } catch (...) {
    stop_lanes();  // no destructor runs, and members must not go while a thread uses them
    throw;
  }
}

void Runner::start_lanes() {
  for (int l = 0; l < kLaneCount; ++l) {
    const auto lane = static_cast<Lane>(l);
    const bool used = std::ranges::any_of(lanes_[index(lane)].code,
                                          [](const auto& code) { return !code.empty(); });
    if (lane == Lane::compute || !used) continue;
    std::vector<Worker>& workers = lanes_[index(lane)].workers;
    for (std::size_t worker = 0; worker < workers.size(); ++worker) {
      workers[worker].thread =
          start_thread(lane == Lane::disk ? "reading from disk" : "copying weights",
                       [this, lane, worker] { lane_main(lane, worker); });
    }
  }
}

Runner::~Runner() { stop_lanes(); }

void Runner::stop_lanes() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  start_.notify_all();
  for (LaneState& lane : lanes_) {
    for (Worker& worker : lane.workers) {
      if (worker.thread.joinable()) worker.thread.join();
    }
  }
}

void Runner::write(Buffer b, std::span<const std::byte> from) {
  check(set_.spec(b).bytes == from.size(), "{} bytes for {} {}", from.size(), set_.name(b),
        set_.spec(b).shape);
  write_part(b, 0, from);
}

void Runner::read(Buffer b, std::span<std::byte> to) {
  check(set_.spec(b).bytes == to.size(), "{} bytes of {} {}", to.size(), set_.name(b),
        set_.spec(b).shape);
  read_part(b, 0, to);
}

void Runner::write_part(Buffer b, std::uint64_t first, std::span<const std::byte> from) {
  const std::uint64_t at = check_part(b, first, from.size());
  if (set_.spec(b).tier == Tier::disk) return scratch_.write(at, from);
  const TensorView v = view(b);
  if (v.device == Device::cuda) {
    gpu_copy(v.data + first, from.data(), {from.size()});
  } else {
    std::ranges::copy(from, v.data + first);
  }
}

void Runner::read_part(Buffer b, std::uint64_t first, std::span<std::byte> to) {
  const std::uint64_t at = check_part(b, first, to.size());
  if (set_.spec(b).tier == Tier::disk) return scratch_.read(at, to);
  const TensorView v = view(b);
  if (v.device == Device::cuda) {
    gpu_copy(to.data(), v.data + first, {to.size()});
  } else {
    std::copy_n(v.data + first, to.size(), to.data());
  }
}

// Where byte `first` of the buffer is in its tier.
std::uint64_t Runner::check_part(Buffer b, std::uint64_t first, std::size_t bytes) const {
  const BufferSpec& s = set_.spec(b);
  const bool contiguous = TensorView(nullptr, s.dtype, s.shape, s.strides).contiguous();
  check(outlives_program(s) && contiguous && first <= s.bytes && bytes <= s.bytes - first,
        "{} bytes from {} on of {} {}", bytes, first, set_.name(b), s.shape);
  return plan_.offset[s.root.id] + s.offset + first;
}

bool Runner::host_can_touch(Buffer b) const {
  const Tier tier = set_.spec(b).tier;
  return tier == Tier::host || (tier == Tier::device && set_.backend.device == Device::cpu);
}

TensorView Runner::view(Buffer b) {
  const BufferSpec& s = set_.spec(b);
  check(outlives_program(s), "{} is a temporary: it has no memory between runs", set_.name(b));
  check(s.tier != Tier::disk, "{} is on disk: it has no address", set_.name(b));
  return TensorView(bases_.base[to_size(s.tier)] + plan_.offset[s.root.id] + s.offset, s.dtype,
                    s.shape, s.strides, s.tier == Tier::device ? set_.backend.device : Device::cpu);
}

void Runner::run(int program, const StepValues& step) {
  step_ = step;
  times_ = {};
  for (LaneState& lane : lanes_) {
    lane.taken.store(0, std::memory_order_relaxed);
    lane.done.store(0, std::memory_order_relaxed);
    lane.finished = {};
    for (Worker& worker : lane.workers) worker.time = {};
  }
  await_pinned(program);
  if (options_.debug.order == Order::concurrent) {
    run_concurrent(program);
  } else {
    run_one_by_one(program);
  }
  for (LaneState& lane : lanes_) {
    for (Worker& worker : lane.workers) high_water_.include(worker.high_water);
  }
  const auto& reads = lanes_[index(Lane::disk)].code[to_size(program)];
  if (set_.checked_reads && !reads.empty()) set_.checked_reads->check_files();
}

ThreadPool* Runner::pool_of(Lane lane) {
  // Beside a GPU it is the host lane that computes on the processors, if anybody does.
  return lane == (gpu_ ? Lane::host : Lane::compute) ? &compute_ : &copier_;
}

bool Runner::execute(Part what, Lane lane, int program, std::size_t worker) {
  const Instruction& ins = set_.programs[to_size(program)].instructions[what.instruction];
  ThreadPool* const pool = pool_of(lane);
  const Stream stream = gpu_ && is_queue(lane) ? gpu_->stream(lane, pool) : Stream{.pool = pool};
  const std::string& name = set_.programs[to_size(program)].name;
  // Only one lane has several workers.
  static_assert(kLaneCount + kMaxWorkers - 1 <= kLaneActivities);
  const std::size_t place = worker == 0 ? index(lane) : kLaneCount + worker - 1;
  const ActivityScope running(place, ins.name.data(), name.c_str());
  const auto trail = [&](Error& e) {
    e.add_trail(fmt::format("running {} of program {}", ins.name, name));
    if (e.code() == ErrorCode::device) {
      e.add_trail(describe_live_buffers(set_, plan_, program, what.instruction));
    }
  };
  bool asked_for_step = false;
  try {
    const bool all = what.part == kAllParts;
    for (std::uint32_t p = all ? 0 : what.part; p < (all ? ins.splits : what.part + 1); ++p) {
      ins.run(Bindings(set_, plan_.offset, bases_, ins, step_, stream,
                       &lanes_[index(lane)].workers[worker].high_water, &asked_for_step, p));
    }
  } catch (Error& e) {
    trail(e);
    throw;
  } catch (const std::bad_alloc&) {
    Error e = out_of_memory();
    trail(e);
    throw e;
  }
  return asked_for_step;
}

void Runner::run_concurrent(int program) {
  if (gpu_ && ++runs_[to_size(program)] == 2) capture_segments(program);
  {
    const std::lock_guard lock(mutex_);
    failed_.store(false);
    error_ = nullptr;
    program_ = program;
    rings_.begin(program);
    lanes_busy_ = 0;
    for (const LaneState& lane : lanes_) {
      for (const Worker& worker : lane.workers) lanes_busy_ += worker.thread.joinable() ? 1 : 0;
    }
    ++generation_;
  }
  start_.notify_all();
  run_lane(Lane::compute, program, 0);
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [this] { return lanes_busy_ == 0; });
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto workers = static_cast<double>(lanes_[l].workers.size());
    for (const Worker& worker : lanes_[l].workers) {
      times_[l].busy += worker.time.busy / workers;
      times_[l].waiting += worker.time.waiting / workers;
    }
  }
  if (gpu_) {
    try {
      gpu_->finish();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
    if (!error_) read_gpu_times();
  }
  if (error_) {
    const std::exception_ptr error = std::exchange(error_, nullptr);
    lock.unlock();
    try {
      std::rethrow_exception(error);
    } catch (Error& e) {
      // A GPU that came to no note adds nothing to an instruction that was named.
      const bool more = gpu_ && (gpu_->reached() || e.trail().empty());
      if (more && e.code() == ErrorCode::device) e.add_trail(progress_on_gpu(program));
      throw;
    }
  }
}

// What was given to the GPU fails when it gets to it, long after the lanes went on: whoever asks
// next hears of it.
std::string Runner::progress_on_gpu(int program) const {
  const Program& p = set_.programs[to_size(program)];
  const auto& code = lanes_[index(Lane::compute)].code[to_size(program)];
  const auto begin = gpu_->reached();
  if (!begin || *begin >= code.size()) {
    return fmt::format(
        "the GPU was at one of the {} instructions of program {} (--check-nan runs "
        "them one by one and names it)",
        p.instructions.size(), p.name);
  }
  // The next note was not reached: it is at the end of a recording's own, or of those in between.
  const std::size_t last =
      std::min<std::size_t>(*begin + GraphSegments::kMarkerInterval, code.size()) - 1;
  return fmt::format(
      "the GPU had done what stands before {} of program {} ({} of {} on its compute "
      "lane) and not all up to {} (--check-nan runs them one by one and names one)",
      p.instructions[code[*begin]].name, p.name, *begin + 1, code.size(),
      p.instructions[code[last]].name);
}

// Once every kernel was there: what loads one while it is noted cannot be noted. Most programs that
// run at all run once.
void Runner::capture_segments(int program) {
  const auto& code = lanes_[index(Lane::compute)].code[to_size(program)];
  const auto enqueue = [&](std::uint32_t place) {
    const bool asked = execute({code[place]}, Lane::compute, program);
    check(!asked, "instruction {} of program {} asks for the step's values now and then",
          code[place], program);
  };
  gpu_->segments().capture(program, gpu_->compute(),
                           std::ref(enqueue));  // a copy would be allocated
}

// Queues have their own clock. What a queue waits for is known of compute alone.
void Runner::read_gpu_times() {
  for (const Lane lane : {Lane::compute, Lane::upload, Lane::download}) {
    if (lanes_[index(lane)].code[to_size(program_)].empty()) continue;
    const double stalled = lane == Lane::compute ? gpu_->stalled() : 0;
    times_[index(lane)] = {.busy = gpu_->elapsed(lane) - stalled, .waiting = stalled};
  }
}

std::uint32_t Runner::repeated_instructions(int program) const {
  return gpu_ ? gpu_->segments().repeated(program) : 0;
}

void Runner::time_instructions(bool on) {
  check(gpu_.has_value(), "only a GPU's instructions are timed");
  gpu_->time_instructions(on);
}

std::vector<std::pair<std::string_view, double>> Runner::compute_times() const {
  check(gpu_.has_value(), "only a GPU's instructions are timed");
  std::vector<std::pair<std::string_view, double>> times;
  const auto p = to_size(program_);
  for (const std::uint32_t i : lanes_[index(Lane::compute)].code[p]) {
    times.emplace_back(set_.programs[p].instructions[i].name, gpu_->seconds_of(times.size()));
  }
  return times;
}

void Runner::lane_main(Lane lane, std::size_t worker) {
  if (gpu_) use_gpu();
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
    run_lane(lane, program, worker);
    const std::lock_guard lock(mutex_);
    --lanes_busy_;
    progress_.notify_all();
  }
}

// The workers of a lane take its instructions in order, part by part. One begins when those before
// it have what they wait for, since waits that follow from theirs are not in the plan, and when
// those that share bytes with it are done. It counts as done when all before it are.
void Runner::run_lane(Lane lane, int program, std::size_t worker) {
  LaneState& state = lanes_[index(lane)];
  LaneTime& time = state.workers[worker].time;
  const auto& code = state.code[to_size(program)];
  const auto& parts = state.parts[to_size(program)];
  const auto& awaited = state.awaited[to_size(program)];
  const bool queue = gpu_ && is_queue(lane) && !code.empty();
  const bool several = state.workers.size() > 1;
  bool played = false;  // what stands before the next instruction is a recording
  try {
    if (queue) gpu_->begin(lane);
    for (;;) {
      Stopwatch watch;
      std::unique_lock take(state.take_mutex, std::defer_lock);
      if (several) take.lock();
      const std::uint32_t n = state.taken.fetch_add(1, std::memory_order_relaxed);
      if (n >= (several ? parts.size() : code.size())) break;
      const Part what = several ? parts[n] : Part{code[n]};
      const std::uint32_t i = what.instruction;
      const bool on_gpu = queue && gpu_->on_gpu(program, i);
      const bool waits = !options_.debug.ignore_waits && (!several || what.part == 0);
      if (waits && !wait_all(lane, program, i, on_gpu)) return;
      if (several && !wait_for_parts(state, program, n)) return;
      if (waits && lane == Lane::disk) {
        rings_.before(program, i, [&](const Wait& w) { return passed(program, w); });
      }
      if (several) take.unlock();
      if (failed_.load(std::memory_order_relaxed)) return;
      time.waiting += watch.seconds();
      watch = {};
      if (queue && lane == Lane::compute) await_prepared(program, i);
      if (queue && !on_gpu) gpu_->drain(lane);
      const GraphSegments::Segment* const segment =
          queue && lane == Lane::compute ? gpu_->segment_at(program, n) : nullptr;
      std::uint32_t last = n;
      if (segment) {
        gpu_->launch(*segment);
        played = true;
        last += segment->count - 1;
        state.taken.store(last + 1, std::memory_order_relaxed);  // this lane has one hand
      } else {
        if (queue && lane == Lane::compute) gpu_->mark_progress(n, std::exchange(played, false));
        if (queue) gpu_->begin_instruction(lane);
        const bool asked = execute(what, lane, program, worker);
        if (queue) gpu_->end_instruction(lane);
        if (queue && asked && lane == Lane::compute) gpu_->segments().asks_for_step(program, n);
      }
      if (queue) gpu_->given(lane, program, last + 1);
      time.busy += watch.seconds();
      if (several) {
        finish(state, program, n);
      } else if (awaited[last]) {
        raise(state.done, last + 1);
      }
    }
    if (queue) gpu_->end(lane);
  } catch (...) {
    stop_all(std::current_exception());
  }
}

void Runner::raise(std::atomic<std::uint32_t>& count, std::uint32_t to) {
  {
    const std::lock_guard lock(mutex_);
    count.store(to, std::memory_order_release);
  }
  progress_.notify_all();
}

bool Runner::wait_all(Lane lane, int program, std::uint32_t instruction, bool on_gpu) {
  const Waits& waits = plan_.waits[to_size(program)];
  // From before this thread waits: the GPU is done with what it has long before the disk is.
  const std::uint32_t end = waits.begin[instruction + 1];
  const bool stall = gpu_ && on_gpu && lane == Lane::compute && waits.begin[instruction] < end;
  if (stall) gpu_->begin_stall();
  for (std::uint32_t w = waits.begin[instruction]; w < end; ++w) {
    const Wait& wait = waits.all[w];
    const LaneState& other = lanes_[index(wait.lane)];
    const auto& until = other.parts_until[to_size(program)];
    if (!wait_for(other.done, until.empty() ? wait.count : until[wait.count - 1])) return false;
    if (!gpu_ || !is_queue(wait.lane)) continue;
    gpu_->wait(lane, program, wait, on_gpu);  // the other queue has the work, now it must be done
  }
  if (stall) gpu_->end_stall();
  return true;
}

bool Runner::passed(int program, const Wait& wait) const {
  const LaneState& other = lanes_[index(wait.lane)];
  const auto& until = other.parts_until[to_size(program)];
  const std::uint32_t least = until.empty() ? wait.count : until[wait.count - 1];
  if (other.done.load(std::memory_order_acquire) < least) return false;
  return !gpu_ || !is_queue(wait.lane) || gpu_->passed(program, wait);
}

// False when another lane failed: the run is over.
bool Runner::wait_for(const std::atomic<std::uint32_t>& count, std::uint32_t least) {
  if (count.load(std::memory_order_acquire) >= least) return true;
  std::unique_lock lock(mutex_);
  progress_.wait(lock,
                 [&] { return failed_.load() || count.load(std::memory_order_acquire) >= least; });
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
