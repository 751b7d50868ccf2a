#include "plan/runner.h"

#include <algorithm>
#include <new>

#include "core/error.h"
#include "core/lane_activity.h"
#include "core/start_thread.h"
#include "plan/checked_reads.h"
#include "plan/display_names.h"
#include "plan/live_buffers.h"
#include "plan/rank_agreement.h"

namespace ballast {
namespace {

void require_executable(const ProgramSet& set) {
  check(set.executable, "a program recorded for planning cannot be run");
}

}  // namespace

Runner::Runner(const ProgramSet& set, const MemoryPlan& plan, const RunnerOptions& options)
    : Runner(set, plan, options,
             open_memory(set.backend.device, plan.peak_of(Tier::device), plan.peak_of(Tier::host),
                         options)) {}

Runner::Runner(const ProgramSet& set, const MemoryPlan& plan, const RunnerOptions& options,
               RunMemory memory)
    : set_((require_executable(set), set)),
      plan_(plan),
      options_(options),
      memory_(std::move(memory)),
      rings_(set, plan),
      compute_(set.backend.threads),
      copier_(1),
      schedules_(set, plan, options.disk_readers),
      progress_(schedules_) {
  const bool concurrent = options.debug.order == Order::concurrent;
  check(!concurrent || !(options.debug.poison || options.debug.check_nan),
        "poison and NaN checks need recorded or random order");
  check(options.debug.order == Order::recorded || !options.debug.check_guards,
        "guards need the recorded order");
  for (const Tier t : {Tier::device, Tier::host}) {
    check(memory_.size(t) >= plan.peak_of(t), "{} of {} for a plan of {}", memory_.size(t),
          memory_name(t, set.backend.device == Device::cpu), plan.peak_of(t));
    bases_.base[to_size(t)] = memory_.base(t);
  }
  check_ranks_agree(set, plan, options.communicators);
  bases_.communicators = options_.communicators.data();
  if (concurrent && !options.debug.ignore_waits) bases_.rings = &rings_;
  if (plan.peak_of(Tier::disk).count > 0) open_scratch();
  if (set.backend.device == Device::cuda) gpu_.emplace(set, plan);
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    hands_[l].resize(schedules_[static_cast<Lane>(l)].workers);
  }
  runs_.resize(set.programs.size());
  preparation_.emplace(set, plan, bases_, gpu_ ? &*gpu_ : nullptr, &copier_,
                       concurrent ? Preparation::When::beside_runs : Preparation::When::now);
  const Stopwatch watch;
  memory_.await_present();
  memory_seconds_ = watch.seconds();
  if (!concurrent) {
    one_by_one_.emplace(set, plan, schedules_, bases_, options.debug);
    return;
  }
  threads_.emplace(
      schedules_,
      [this] {
        if (gpu_) use_gpu();
      },
      [this](Lane lane, int program, std::size_t worker) { run_lane(lane, program, worker); });
}

Runner::~Runner() {
  preparation_.reset();
  threads_.reset();
  const std::lock_guard nobody_reads(lane_texts());
}

void Runner::run(int program, const StepValues& step) {
  step_ = step;
  times_ = {};
  progress_.begin();
  for (auto& lane : hands_) {
    for (Worker& worker : lane) worker.time = {};
  }
  try {
    run_program(program);
  } catch (...) {
    abort_exchanges();
    throw;
  }
}

void Runner::abort_exchanges() noexcept {
  for (Communicator* group : options_.communicators) group->abort();
}

void Runner::run_program(int program) {
  await_pinned(program);
  if (threads_) {
    run_concurrent(program);
  } else {
    run_one_by_one(program);
  }
  for (const auto& lane : hands_) {
    for (const Worker& worker : lane) high_water_.include(worker.high_water);
  }
  const auto& reads = schedules_.code(Lane::disk, program);
  if (set_.checked_reads && !reads.empty()) set_.checked_reads->check_files();
}

void Runner::run_beside(std::string_view program, const std::function<void()>& other) {
  auto beside = start_task("loading weights", [&] {
    if (gpu_) use_gpu();
    other();
  });
  run(program);
  beside.get();
}

Runner::Opening Runner::opening() const {
  const Preparation::Times& prepared = preparation_->times();
  return {.memory = memory_seconds_,
          .prepared = prepared.seconds,
          .waited = prepared.waited,
          .by_operation = prepared.by_operation};
}

ThreadPool* Runner::pool_of(Lane lane) {
  // Beside a GPU it is the host lane that computes on the processors, if anybody does.
  return lane == (gpu_ ? Lane::host : Lane::compute) ? &compute_ : &copier_;
}

bool Runner::execute(InstructionPart what, Lane lane, int program, std::size_t worker) {
  const Instruction& ins = set_.programs[to_size(program)].instructions[what.instruction];
  ThreadPool* const pool = pool_of(lane);
  const Stream stream = gpu_ && is_queue(lane) ? gpu_->stream(lane, pool) : Stream{.pool = pool};
  const std::string& name = set_.programs[to_size(program)].name;
  // Only one lane has several workers.
  static_assert(kLaneCount + kMaxWorkers - 1 <= kLaneActivities);
  const std::size_t place = worker == 0 ? to_size(lane) : kLaneCount + worker - 1;
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
                       &hands_[to_size(lane)][worker].high_water, &asked_for_step, p));
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

void Runner::run_one_by_one(int program) {
  const auto& code = set_.programs[to_size(program)].instructions;
  one_by_one_->run(program, [&](std::uint32_t i) {
    execute({i}, code[i].lane, program);
    if (gpu_ && is_queue(code[i].lane)) gpu_->drain(code[i].lane);
  });
}

void Runner::run_concurrent(int program) {
  if (gpu_ && ++runs_[to_size(program)] == 2) capture_segments(program);
  program_ = program;
  rings_.begin(program);
  threads_->run(program);
  for (std::size_t l = 0; l < kLaneCount; ++l) {
    const auto count = static_cast<double>(hands_[l].size());
    for (const Worker& worker : hands_[l]) {
      times_[l].busy += worker.time.busy / count;
      times_[l].waiting += worker.time.waiting / count;
    }
  }
  std::exception_ptr error = progress_.take_error();
  if (gpu_) {
    try {
      gpu_->finish();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    if (!error) read_gpu_times();
  }
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (Error& e) {
    // A GPU that came to no note adds nothing to an instruction that was named.
    const bool more = gpu_ && (gpu_->reached() || e.trail().empty());
    if (more && e.code() == ErrorCode::device) e.add_trail(progress_on_gpu(program));
    throw;
  }
}

// What was given to the GPU fails when it gets to it, long after the lanes went on: whoever asks
// next hears of it.
std::string Runner::progress_on_gpu(int program) const {
  const Program& p = set_.programs[to_size(program)];
  const auto& code = schedules_.code(Lane::compute, program);
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
  const auto& code = schedules_.code(Lane::compute, program);
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
    if (schedules_.code(lane, program_).empty()) continue;
    const double stalled = lane == Lane::compute ? gpu_->stalled() : 0;
    times_[to_size(lane)] = {.busy = gpu_->elapsed(lane) - stalled, .waiting = stalled};
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
  for (const std::uint32_t i : schedules_.code(Lane::compute, program_)) {
    times.emplace_back(set_.programs[p].instructions[i].name, gpu_->seconds_of(times.size()));
  }
  return times;
}

// The workers of a lane take its instructions in order, part by part. One begins when those before
// it have what they wait for, since waits that follow from theirs are not in the plan, and when
// those that share bytes with it are done. It counts as done when all before it are.
void Runner::run_lane(Lane lane, int program, std::size_t worker) {
  LaneTime& time = hands_[to_size(lane)][worker].time;
  LaneRun run = {.lane = lane,
                 .program = program,
                 .worker = worker,
                 .queue = gpu_ && is_queue(lane) && !schedules_.code(lane, program).empty()};
  try {
    if (run.queue) gpu_->begin(lane);
    for (;;) {
      Stopwatch watch(options_.now);
      std::unique_lock take_lock = progress_.take_lock(lane);
      const std::uint32_t place = progress_.take(lane);
      if (place >= schedules_[lane].length(program)) break;
      if (!wait_for_turn(run, place)) return;
      if (take_lock.owns_lock()) take_lock.unlock();
      if (progress_.stopped()) return;
      time.waiting += watch.seconds();
      watch = Stopwatch(options_.now);
      const std::uint32_t last = run_next(run, place);
      if (run.queue) gpu_->given(lane, program, last + 1);
      time.busy += watch.seconds();
      progress_.finish(lane, program, last);
    }
    if (run.queue) gpu_->end(lane);
  } catch (...) {
    progress_.stop(std::current_exception());
    abort_exchanges();  // the network lane may be waiting for other ranks
  }
}

// Until what stands at `place` of the lane may begin. False: another lane failed, the run is over.
bool Runner::wait_for_turn(const LaneRun& run, std::uint32_t place) {
  const LaneSchedule& schedule = schedules_[run.lane];
  const InstructionPart what = schedule.at(run.program, place);
  const bool waits = !options_.debug.ignore_waits && (!schedule.several() || what.part == 0);
  if (waits && !wait_all(run, what.instruction)) return false;
  if (schedule.several() && !progress_.wait_for_parts_before(run.lane, run.program, place)) {
    return false;
  }
  if (waits && run.lane == Lane::disk) {
    const int program = run.program;
    rings_.before(program, what.instruction, [&](const Wait& w) { return passed(program, w); });
  }
  return true;
}

// Returns the last place that was run: a recording of the GPU covers several.
std::uint32_t Runner::run_next(LaneRun& run, std::uint32_t place) {
  const InstructionPart what = schedules_[run.lane].at(run.program, place);
  if (!run.queue) {
    execute(what, run.lane, run.program, run.worker);
    return place;
  }
  const bool compute = run.lane == Lane::compute;
  if (compute) preparation_->await(run.program, what.instruction);
  if (!gpu_->on_gpu(run.program, what.instruction)) gpu_->drain(run.lane);
  const GraphSegments::Segment* const segment =
      compute ? gpu_->segment_at(run.program, place) : nullptr;
  if (segment) {
    gpu_->launch(*segment);
    run.played = true;
    const std::uint32_t last = place + segment->count - 1;
    progress_.skip_to(run.lane, last + 1);  // this lane has one hand
    return last;
  }
  if (compute) gpu_->mark_progress(place, std::exchange(run.played, false));
  gpu_->begin_instruction(run.lane);
  const bool asked = execute(what, run.lane, run.program, run.worker);
  gpu_->end_instruction(run.lane);
  if (asked && compute) gpu_->segments().asks_for_step(run.program, place);
  return place;
}

bool Runner::wait_all(const LaneRun& run, std::uint32_t instruction) {
  const Waits& waits = plan_.waits[to_size(run.program)];
  const bool on_gpu = run.queue && gpu_->on_gpu(run.program, instruction);
  // From before this thread waits: the GPU is done with what it has long before the disk is.
  const std::uint32_t end = waits.begin[instruction + 1];
  const bool stall = on_gpu && run.lane == Lane::compute && waits.begin[instruction] < end;
  if (stall) gpu_->begin_stall();
  for (std::uint32_t w = waits.begin[instruction]; w < end; ++w) {
    const Wait& wait = waits.all[w];
    if (!progress_.wait_for(run.program, wait)) return false;
    if (!gpu_ || !is_queue(wait.lane)) continue;
    // The other queue has the work, now it must be done.
    gpu_->wait(run.lane, run.program, wait, on_gpu);
  }
  if (stall) gpu_->end_stall();
  return true;
}

bool Runner::passed(int program, const Wait& wait) const {
  if (!progress_.passed(program, wait)) return false;
  return !gpu_ || !is_queue(wait.lane) || gpu_->passed(program, wait);
}

}  // namespace ballast
