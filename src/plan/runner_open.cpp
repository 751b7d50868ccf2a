// What Runner makes before the first run: memory, scratch space, what libraries prepare.

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/start_thread.h"
#include "core/stopwatch.h"
#include "core/to_size.h"
#include "plan/runner.h"

namespace ballast {

RunMemory Runner::open_memory(Device device, Bytes device_bytes, Bytes host_bytes,
                              const RunnerOptions& options) {
  // One by one, the host looks at memory between instructions.
  const auto reach = options.debug.order == Order::concurrent ? GpuArena::Reach::device
                                                              : GpuArena::Reach::host_too;
  return RunMemory(device, device_bytes, host_bytes, reach);
}

// Copies to the GPU work from memory that is not pinned yet, slowly; kernels cannot reach it, on
// whatever queue they are, and what comes back would be waited for. So weights are read beside the
// pinning where they are taken as they are, and steps are not taken.
bool Runner::needs_pinned(int program) const {
  const auto& all = set_.programs[to_size(program)].instructions;
  const auto of_host = [&](Buffer b) { return set_.spec(b).tier == Tier::host; };
  const bool reads_disk =
      std::ranges::any_of(all, [](const Instruction& i) { return i.lane == Lane::disk; });
  return !reads_disk || std::ranges::any_of(all, [&](const Instruction& i) {
    if (!is_queue(i.lane) || (i.lane == Lane::upload && i.copies_bytes)) return false;
    return std::ranges::any_of(i.reads, of_host) || std::ranges::any_of(i.writes, of_host);
  });
}

void Runner::await_pinned(int program) {
  if (memory_.pinned() || !needs_pinned(program)) return;
  const Stopwatch watch;
  memory_.await_pinned();
  opening_.memory += watch.seconds();
}

void Runner::run_beside(std::string_view program, const std::function<void()>& other) {
  auto beside = start_task("loading weights", [&] {
    if (gpu_) use_gpu();
    other();
  });
  run(program);
  beside.get();
}

void Runner::open_scratch() {
  const std::string& folder = options_.scratch_folder;
  scratch_ =
      ScratchFile::create(folder.empty() ? std::filesystem::temp_directory_path().string() : folder,
                          plan_.peak_of(Tier::disk));
  bases_.scratch = &scratch_;
}

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

void Runner::prepare_share(std::size_t share) {
  use_gpu();
  std::map<std::string, double> seconds;
  const auto is_at = [&](std::uint64_t place) {
    {
      const std::lock_guard lock(preparing_mutex_);
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
        i.prepare(Bindings(set_, plan_.offset, bases_, i, step_, gpu_->stream(i.lane, &copier_),
                           nullptr));
      });
      seconds[std::string(i.name.substr(i.name.rfind('.') + 1))] += one.seconds();
    }
  }
  is_at(place_of(set_.programs.size(), 0));
  const std::lock_guard lock(mutex_);
  for (const auto& [name, took] : seconds) opening_.by_operation[name] += took;
}

// What libraries make for certain sizes takes a second or more: it goes on beside the programs that
// load weights, which have nothing of the kind, and beside the first that has, as far as nobody
// waits for it: a backward pass comes long after its forward pass.
void Runner::prepare() {
  const bool any = std::ranges::any_of(set_.programs, [](const Program& p) {
    return std::ranges::any_of(p.instructions,
                               [](const Instruction& i) { return static_cast<bool>(i.prepare); });
  });
  if (!any) return;
  check(gpu_.has_value(), "there is something to prepare, but no GPU");
  const auto all = [this] {
    const Stopwatch watch;
    auto others = start_task("preparing kernels", [this] { prepare_share(1); });
    prepare_share(0);
    others.get();
    opening_.prepared = watch.seconds();
  };
  if (options_.debug.order != Order::concurrent) return all();
  preparation_ = Preparing::under_way;
  const auto end_as = [this](Preparing how) {
    {
      const std::lock_guard lock(preparing_mutex_);
      preparation_ = how;
    }
    prepared_more_.notify_all();
  };
  preparing_ = start_task("preparing kernels", [all, end_as] {
                 try {
                   all();
                 } catch (...) {
                   end_as(Preparing::failed);
                   throw;
                 }
                 end_as(Preparing::done);
               }).share();
}

void Runner::await_prepared(int program, std::uint32_t instruction) {
  if (preparation_.load(std::memory_order_acquire) == Preparing::done) return;
  const auto p = to_size(program);
  const Instruction& i = set_.programs[p].instructions[instruction];
  if (!i.prepare) return;
  const std::atomic<std::uint64_t>& until = prepared_until_[share_of(i)];
  const std::uint64_t mine = place_of(p, instruction);
  if (until.load(std::memory_order_acquire) > mine) return;
  const Stopwatch watch;
  {
    std::unique_lock lock(preparing_mutex_);
    prepared_more_.wait(
        lock, [&] { return until > mine || preparation_.load() != Preparing::under_way; });
  }
  opening_.waited += watch.seconds();
  if (until <= mine) preparing_.get();  // throws what ended it
}

}  // namespace ballast
