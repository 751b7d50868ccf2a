// What Runner makes before the first run: memory, scratch space, what libraries prepare.

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/stopwatch.h"
#include "plan/runner.h"

namespace ballast {

RunMemory Runner::open_memory(Device device, Bytes device_bytes, Bytes host_bytes,
                              const RunnerOptions& options) {
  // One by one, the host looks at memory between instructions.
  const auto reach = options.debug.order == Order::concurrent ? GpuArena::Reach::device
                                                              : GpuArena::Reach::host_too;
  return RunMemory(device, device_bytes, host_bytes, reach);
}

// Copies to the GPU work from memory that is not pinned yet, slowly; kernels cannot reach it, and
// what comes back would be waited for. So weights are read beside the pinning, and steps are not
// taken.
bool Runner::needs_pinned(int program) const {
  const auto& all = set_.programs[static_cast<std::size_t>(program)].instructions;
  const auto of_host = [&](Buffer b) { return set_.spec(b).tier == Tier::host; };
  const bool reads_disk =
      std::ranges::any_of(all, [](const Instruction& i) { return i.lane == Lane::disk; });
  return !reads_disk || std::ranges::any_of(all, [&](const Instruction& i) {
    if (i.lane != Lane::compute && i.lane != Lane::download) return false;
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
  auto beside = std::async(std::launch::async, [&] {
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

// Attention is cuDNN's and most of the rest cuBLASLt's: neither waits for the other.
void Runner::prepare_share(bool attention) {
  use_gpu();
  std::map<std::string, double> seconds;
  for (const Program& p : set_.programs) {
    for (const Instruction& i : p.instructions) {
      const bool is_attention =
          i.cost.work == Work::attention || i.cost.work == Work::attention_backward;
      if (!i.prepare || is_attention != attention) continue;
      const Stopwatch one;
      while_doing(fmt::format("preparing {} of program {}", i.name, p.name), [&] {
        i.prepare(Bindings(set_, plan_.offset, bases_, i, step_, gpu_->stream(i.lane, &copier_),
                           nullptr));
      });
      seconds[std::string(i.name.substr(i.name.rfind('.') + 1))] += one.seconds();
    }
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [name, took] : seconds) opening_.by_operation[name] += took;
}

// What libraries make for certain sizes takes a second or more: it goes on beside the first
// programs, which load weights and have nothing of the kind, and beside the reading and copying of
// the first that has.
void Runner::prepare() {
  for (const Program& p : set_.programs) {
    prepares_.push_back(std::ranges::any_of(
        p.instructions, [](const Instruction& i) { return static_cast<bool>(i.prepare); }));
  }
  if (std::ranges::find(prepares_, true) == prepares_.end()) return;
  check(gpu_.has_value(), "there is something to prepare, but no GPU");
  const auto all = [this] {
    const Stopwatch watch;
    auto others = std::async(std::launch::async, [this] { prepare_share(false); });
    prepare_share(true);
    others.get();
    opening_.prepared = watch.seconds();
  };
  if (options_.debug.order != Order::concurrent) return all();
  preparing_ = std::async(std::launch::async, all).share();
}

void Runner::await_prepared(int program) {
  if (!preparing_.valid() || !prepares_[static_cast<std::size_t>(program)]) return;
  if (opening_.waited > 0) return;
  const Stopwatch watch;
  preparing_.get();
  opening_.waited = std::max(1e-9, watch.seconds());
}

}  // namespace ballast
